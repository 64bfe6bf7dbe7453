"""Print an experiment's rows as the Markdown tables of ``docs/experiments.md``.

    rollart simulate end_to_end --json rows.json
    scripts/experiment_tables.py rows.json

The first table has a row for each point, the second the ratios that the experiment compares, the paper's beside ours.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from rollart.simulation.experiments import Experiment, compared, experiment_file

HEAD = ("step time s", "tokens/s", "rollout s", "train s", "exposed s", "wasted", "idle")


def main(arguments: list[str]) -> int:
    """Print the tables of each file."""
    if not arguments:
        print("give the files that rollart simulate --json has written", file=sys.stderr)
        return 2
    for name in arguments:
        rows: list[dict[str, Any]] = json.loads(Path(name).read_text())
        experiment = Experiment.model_validate(yaml.safe_load(experiment_file(rows[0]["experiment"]).read_text()))
        print("\n".join([*points_table(experiment, rows), "", *ratios_table(experiment, rows)]))
    return 0


def points_table(experiment: Experiment, rows: list[dict[str, Any]]) -> Iterator[str]:
    """A line for each point."""
    factors = [axis.factor for axis in experiment.vary]
    yield from table_head((*factors, *HEAD))
    for row in rows:
        numbers = (
            f"{row['step_time_s']:.1f} ± {row['step_time_s_std']:.1f}",
            f"{row['throughput_tokens_per_s']:,.0f}",
            f"{row['rollout_s']:.1f}",
            f"{row['train_s']:.1f}",
            f"{row['exposed_update_s']:.1f}",
            f"{row['wasted_token_share']:.1%}",
            idle(row["idle_share"]),
        )
        yield f"| {' | '.join((*(str(row[factor]) for factor in factors), *numbers))} |"


def ratios_table(experiment: Experiment, rows: list[dict[str, Any]]) -> Iterator[str]:
    """A line for each ratio."""
    yield from table_head(("ratio", "", "ours", "paper"))
    for label, key, ratio, paper in compared(experiment, rows):
        yield f"| {label} | {key} | {ratio:.2f} | {paper or '-'} |"


def table_head(names: tuple[str, ...]) -> list[str]:
    """The first two lines of a table."""
    return [f"| {' | '.join(names)} |", f"|{' --- |' * len(names)}"]


def idle(shares: Mapping[str, float]) -> str:
    """Idle shares by pool."""
    return ", ".join(f"{place.split('/')[0]} {share:.0%}" for place, share in shares.items())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
