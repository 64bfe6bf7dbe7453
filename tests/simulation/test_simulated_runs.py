"""Whole simulated runs: deterministic, complete, and with the relations that any correct model has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from small import log_of, small

from rollart.config.modes import PRESETS
from rollart.resource_plane.hardware import hardware
from rollart.simulation.simulator import SimulationResult, simulate

TRAINED = 5 * 4 * 4


def run(tmp_path: Path, **settings: Any) -> SimulationResult:
    folder = tmp_path / str(len(list(tmp_path.iterdir())))
    folder.mkdir()
    return simulate(small({key.replace("__", "."): value for key, value in settings.items()}), folder, 1, log=False)


def test_the_same_configuration_gives_the_same_log_byte_for_byte(tmp_path: Path) -> None:
    logs = []
    for name, seed in (("first", 0), ("second", 0), ("other", 1)):
        (tmp_path / name).mkdir()
        simulate(small({"run.seed": seed}), tmp_path / name)
        logs.append(log_of(tmp_path / name))
    assert len(logs[0]) > 10_000
    assert logs[0] == logs[1]
    assert logs[0] != logs[2]


@pytest.mark.parametrize("mode", PRESETS)
def test_every_mode_trains_all_that_it_should(mode: str, tmp_path: Path) -> None:
    result = run(tmp_path, run__mode=mode)
    measured = result.measured
    assert measured.outcomes["trained"] == TRAINED
    assert 0 < measured.step_time_s < result.seconds
    assert all(0 <= share <= 1 for share in measured.idle_share.values())
    assert measured.step_time_s >= measured.train_s
    if mode in ("sync", "sync_plus"):
        assert set(measured.staleness) == {0}
        assert measured.step_time_s >= measured.train_s + measured.rollout_s


def test_overlap_takes_less_time_than_its_parts_in_turn(tmp_path: Path) -> None:
    in_turn = run(tmp_path, run__mode="sync_plus").measured
    overlapped = run(tmp_path, run__mode="rollart").measured
    assert overlapped.step_time_s < in_turn.step_time_s


def test_prefill_and_decode_on_different_engines_lose_nothing_under_aborts(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"placement__prefill": ["h800"], "rollout__max_environments": 96}
    settings["simulation__workloads"] = {"gem_math": {"like": "gem_math"}, "webshop": {"like": "webshop"}}
    result = run(tmp_path, **settings)
    assert result.measured.outcomes["trained"] == TRAINED
    assert "failed" not in result.measured.outcomes
    # the prefill engines work, and less than those that decode
    assert 1 > result.measured.idle_share["h800/generate"] > result.measured.idle_share["h20/generate"]


def test_faster_hardware_and_smaller_models_take_less_time(tmp_path: Path) -> None:
    def train_seconds(**settings: Any) -> float:
        return run(tmp_path, run__mode="sync_plus", **settings).measured.train_s

    whole = train_seconds()
    assert train_seconds(pools__train__hardware="H20") > 2 * whole
    assert train_seconds(simulation__model="qwen3-14b", engine__devices=2) > 1.3 * whole


def test_a_cache_that_cannot_hold_a_history_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"holds \d+ tokens, less than one history of 32768.*engine\.devices"):
        run(tmp_path, simulation__model="qwen3-32b")


def test_too_few_iterations_to_measure_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="iterations"):
        simulate(small({"run.iterations": 1}), tmp_path, 3, log=False)


def test_the_pools_cost_what_their_devices_do(tmp_path: Path) -> None:
    result = run(tmp_path)
    hours = result.seconds / 3600
    pools = hours * (6 * hardware("H800").cost + 2 * hardware("H20").cost + hardware("CPU").cost)
    assert result.cost == pytest.approx(pools + sum(stats.cost for stats in result.rewards))
