"""Experiments: their points, their rows, and that every shipped file is a valid one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from small import BASE

from rollart.config.load import simulated_config
from rollart.simulation.experiments import (
    Experiment,
    compared,
    experiment_file,
    library,
    points,
    run_experiment,
)

SYNC, ASYNC = {"run.mode": "sync_plus"}, {"run.mode": "rollart"}


def experiment(**more: Any) -> Experiment:
    axes = [
        {"factor": "system", "points": {"sync_plus": SYNC, "rollart": ASYNC}},
        {"factor": "size", "points": {"4": {}, "8": {"rollout.group_size": 8}}},
    ]
    compare = [
        {
            "label": "gain",
            "field": "step_time_s",
            "factor": "system",
            "of": "sync_plus",
            "to": "rollart",
            "paper": {"8": "2.05"},
        }
    ]
    given = {"name": "tiny", "title": "Tiny", "seeds": [0, 1], "skipped": 1, "base": BASE, "vary": axes}
    return Experiment.model_validate({**given, "compare": compare, **more})


@pytest.mark.parametrize("name", library())
def test_every_point_of_a_shipped_experiment_is_a_valid_configuration(name: str) -> None:
    shipped = Experiment.model_validate(yaml.safe_load(experiment_file(name).read_text()))
    assert shipped.name == name
    for point in points(shipped):
        config = simulated_config(shipped.base, {"run.name": name, **point.settings})
        assert config.run.iterations > shipped.skipped + 1
    factors = {axis.factor: set(axis.points) for axis in shipped.vary}
    for comparison in shipped.compare:
        assert {comparison.of, comparison.to} <= factors[comparison.factor], comparison.label


def test_points_are_all_combinations_and_can_be_chosen() -> None:
    tiny = experiment()
    assert [point.label for point in points(tiny)] == ["sync_plus-4", "sync_plus-8", "rollart-4", "rollart-8"]
    (chosen,) = points(tiny, {"system": "rollart", "size": "8"}, {"rollout.group_size": 2})
    assert chosen.settings == {"run.mode": "rollart", "rollout.group_size": 2}


@pytest.mark.parametrize(
    ("only", "message"),
    [({"system": "async"}, "has no point 'async'"), ({"colour": "red"}, "there is no factor 'colour'")],
)
def test_points_that_do_not_exist_are_refused(only: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        points(experiment(), only)


def test_an_unknown_name_says_the_nearest() -> None:
    with pytest.raises(ValueError, match="did you mean 'end_to_end'"):
        experiment_file("end_to_ends")


def test_rows_are_the_same_in_one_process_and_in_two(tmp_path: Path) -> None:
    tiny = experiment()
    chosen = points(tiny, {"size": "4"})
    rows = run_experiment(tiny, chosen, keep=tmp_path / "kept")
    assert [row["system"] for row in rows] == ["sync_plus", "rollart"]
    for row in rows:
        assert row["seeds"] == [0, 1]
        assert row["model"] == "qwen3-8b"
        assert row["step_time_s"] > row["train_s"] > 0
        assert row["step_time_s_std"] > 0
        assert set(row["idle_share"]) == {"train/train", "h800/generate", "h20/generate"}
        assert row["outcomes"]["trained"] > 0
    assert len(list((tmp_path / "kept").iterdir())) == 4

    def plain(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [{key: value for key, value in row.items() if "cpu" not in key} for row in rows]

    assert plain(run_experiment(tiny, chosen, jobs=2)) == plain(rows)
    ((label, key, ratio, paper),) = compared(tiny, rows)
    assert (label, key, paper) == ("gain", "4", "")
    assert ratio == pytest.approx(rows[0]["step_time_s"] / rows[1]["step_time_s"])
