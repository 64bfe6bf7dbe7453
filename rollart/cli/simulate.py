"""``rollart simulate``: a run, or an experiment of many, on a virtual clock against modelled hardware."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rollart.cli.arguments import Commands, command_parser
from rollart.cli.errors import OK, RunFailed, UserError
from rollart.cli.report import conclude
from rollart.cli.run_folder import new_run_folder
from rollart.cli.stopping import terminable

if TYPE_CHECKING:
    from rollart.simulation.experiments import Experiment, Row

MOST_SEEDS = 1000
"""More are a slip of the hand."""

_DETAILS = """\
EXPERIMENT is the file of a run with a section `simulation`, the file of an experiment (base, vary, compare), or the
name of an experiment that ships with RollArt (`rollart simulate --list`). A single run writes a run folder with the
event log, summary and report of a training run; an experiment prints one row for each combination of its factors."""


def add_parser(commands: Commands) -> None:
    parser = command_parser(
        commands, "simulate", "run the control plane in virtual time on modelled hardware", _DETAILS
    )
    parser.add_argument("experiment", nargs="?", metavar="EXPERIMENT", help="a file or the name of an experiment")
    parser.add_argument("overrides", nargs="*", metavar="section.key=value", help="replace single values")
    parser.add_argument("--list", action="store_true", help="list the experiments that ship with RollArt")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the rows to FILE")
    parser.add_argument(
        "--only", action="append", default=[], metavar="FACTOR:POINT", help="simulate only this point of a factor"
    )
    parser.add_argument("--seeds", type=int, metavar="N", help="simulate the seeds 0 to N - 1 instead of the file's")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="processes (default 1)")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep the run folder of every point below DIR")
    parser.set_defaults(command=run)


def run(parsed: argparse.Namespace) -> int:
    """Simulate, and print what came out."""
    from rollart.simulation.experiments import experiment_file, library

    if parsed.list:
        for name, path in library().items():
            print(f"{name:<26} {experiment_of(path).title}")
        return OK
    if parsed.experiment is None:
        raise UserError("name an experiment or give a file (rollart simulate --list)")
    if parsed.jobs < 1 or (parsed.seeds is not None and parsed.seeds < 1):
        raise UserError("--jobs and --seeds take a number of 1 or more")
    if parsed.seeds is not None and parsed.seeds > MOST_SEEDS:
        raise UserError(f"--seeds {parsed.seeds}: give {MOST_SEEDS} or fewer")
    check_json(parsed.json)
    try:
        path = experiment_file(parsed.experiment)
    except (ValueError, OSError) as error:
        raise UserError(str(error)) from error
    if "base" in data_of(path):
        return _run_experiment(parsed, experiment_of(path))
    return _run_one(parsed, path)


def _run_one(parsed: argparse.Namespace, path: Path) -> int:
    """One run, with a run folder."""
    from rollart.config.load import load_simulation
    from rollart.simulation.simulator import check, check_measurable, simulate

    for option in ("only", "seeds", "keep"):
        if getattr(parsed, option):
            raise UserError(f"--{option} belongs to an experiment, and {path} is a single run: leave it out")
    config = load_simulation(path, parsed.overrides)
    try:
        check(config)
        check_measurable(config)
    except ValueError as error:
        raise UserError(f"{path}: {error}") from error
    with new_run_folder(config) as (folder, moved):
        if moved is not None:
            print(f"the earlier run is kept as {moved}")
        try:
            with terminable():
                result = simulate(config, folder)
        except (ValueError, RuntimeError) as error:
            raise RunFailed(str(error)) from error
        measured = result.measured
        if parsed.json is not None:
            write_json(parsed.json, [plain(measured)])
        print(
            f"step {measured.step_time_s:.1f} s, {measured.throughput_tokens_per_s:,.0f} tokens/s, "
            f"train {measured.train_s:.1f} s, exposed update {measured.exposed_update_s:.1f} s, "
            f"wasted tokens {measured.wasted_token_share:.1%}, {measured.turns:,} turns in "
            f"{result.seconds:,.0f} simulated s"
        )
        return conclude(folder)


def _run_experiment(parsed: argparse.Namespace, experiment: Experiment) -> int:
    """Every chosen point; the table grows as the rows come."""
    from rollart.simulation.experiments import check_points, compared, points, run_experiment

    if parsed.seeds is not None:
        experiment = experiment.model_copy(update={"seeds": list(range(parsed.seeds))})
    try:
        chosen = points(experiment, dict(pairs(parsed.only)), settings_of(parsed.overrides))
        check_points(experiment, chosen)
        _make_folder(parsed.keep)
        with terminable():
            print(experiment.title, flush=True)
            rows = run_experiment(
                experiment, chosen, parsed.keep, parsed.jobs, lambda row: print(_line(row), flush=True)
            )
    except ValueError as error:
        raise UserError(str(error)) from error
    except RuntimeError as error:
        raise RunFailed(str(error)) from error
    for label, key, ratio, paper in compared(experiment, rows):
        print(f"{label:<44} {key:<30} {ratio:6.2f}{f'   paper {paper}' if paper else ''}")
    if parsed.json is not None:
        write_json(parsed.json, rows)
    return OK


def _make_folder(keep: Path | None) -> None:
    """The folder of ``--keep``, new or empty."""
    if keep is None:
        return
    try:
        keep.mkdir(parents=True, exist_ok=True)
        empty = not any(keep.iterdir())
    except OSError as error:
        raise UserError(f"--keep {keep}: cannot be a folder: {error.strerror or error}: name another one") from error
    if not empty:
        raise UserError(f"--keep {keep}: the folder is not empty: name another one")


def _line(row: Row) -> str:
    factors = " ".join(str(value) for name, value in row.items() if name in _factors(row))
    idle = " ".join(f"{place} {share:.0%}" for place, share in row["idle_share"].items())
    parts = [
        f"{factors:<40} step {row['step_time_s']:8.1f} ± {row['step_time_s_std']:5.1f} s",
        f"{row['throughput_tokens_per_s']:9,.0f} tokens/s",
        f"rollout {row['rollout_s']:7.1f}",
        f"train {row['train_s']:6.1f}",
        f"update {row['exposed_update_s']:5.1f}",
        f"wasted {row['wasted_token_share']:5.1%}",
        f"idle {idle}",
    ]
    return "  ".join(parts)


def _factors(row: Row) -> list[str]:
    names = list(row)
    return names[1 : names.index("seeds")]


def pairs(texts: Sequence[str]) -> Iterator[tuple[str, str]]:
    """``FACTOR:POINT`` of each ``--only``."""
    seen: set[str] = set()
    for text in texts:
        factor, colon, point = text.partition(":")
        if not colon:
            raise ValueError(f"--only {text}: give FACTOR:POINT, e.g. --only system:rollart")
        if factor in seen:
            raise ValueError(f"--only {text}: '{factor}' was given before: keep one point for each factor")
        seen.add(factor)
        yield factor, point


def data_of(path: Path) -> dict[str, Any]:
    """What a file says."""
    from rollart.config.yaml_file import read_yaml

    return read_yaml(path).data


def experiment_of(path: Path) -> Experiment:
    """The experiment of a file."""
    from pydantic import ValidationError

    from rollart.simulation.experiments import Experiment

    try:
        return Experiment.model_validate(data_of(path))
    except ValidationError as error:
        first = error.errors()[0]
        parts = [str(path), ".".join(map(str, first["loc"])), first["msg"].removeprefix("Value error, ")]
        raise UserError(": ".join(part for part in parts if part)) from error


def settings_of(overrides: Sequence[str]) -> dict[str, Any]:
    """Overrides as values by dotted key; each point of the experiment checks that the keys exist."""
    from rollart.config.overrides import where
    from rollart.config.yaml_file import parse_value

    settings = {}
    for override in overrides:
        key, equals, text = override.partition("=")
        if not equals or not key:
            raise UserError(f"{where(override)}: write it as section.key=value, e.g. run.iterations=4")
        settings[key] = parse_value(text, where(override))
    return settings


def plain(value: Any) -> Any:
    """A struct as JSON has it."""
    import msgspec

    return msgspec.to_builtins(value, str_keys=True)


def check_json(path: Path | None) -> None:
    """Refuse a ``--json FILE`` that cannot be written, before anything is simulated for it."""
    if path is None:
        return
    if path.is_dir() or not path.parent.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        raise UserError(f"--json {path}: cannot be written: name a file in a folder that exists")


def write_json(path: Path, rows: Any) -> None:
    """Write ``--json FILE``."""
    try:
        path.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise UserError(f"--json {path}: cannot be written: {error.strerror or error}") from error
