"""Splits of the pools: what they can be, and that the settings of each make a run that fits."""

from __future__ import annotations

from typing import Any

import pytest
from planned import PLANNED

from rollart.config.load import simulated_config
from rollart.resource_plane.pools import PlanError
from rollart.simulation.pool_split import PoolSplit
from rollart.simulation.simulator import check


def split(settings: dict[str, Any] | None = None) -> PoolSplit:
    return PoolSplit(simulated_config(PLANNED, settings or {}))


def pools_of(settings: dict[str, Any]) -> dict[str, int]:
    return {name: pool.devices for name, pool in simulated_config(PLANNED, settings).pools.items()}


def test_pools_of_one_class_are_one_stock() -> None:
    found = split()
    assert found.given == (2, {"H800": 3, "H20": 2})
    assert (found.stock("H800"), found.stock("H20")) == (6, 2)
    assert [found.room("H800", trainer) for trainer in (2, 5, 6)] == [4, 1, 0]
    assert found.room("H20", 6) == 2
    assert (found.least_trainer, found.most_trainer) == (2, 6)
    assert found.other_cost == pytest.approx(0.03)


@pytest.mark.parametrize("trainer", [2, 3, 5])
@pytest.mark.parametrize("h20", [1, 2])
def test_every_split_makes_a_run_that_fits(trainer: int, h20: int) -> None:
    found = split()
    settings = found.settings(trainer, {"H800": 6 - trainer, "H20": h20})
    config = simulated_config(PLANNED, settings)
    check(config)
    assert config.training.devices == trainer
    assert config.engines_by_pool == {"more": 6 - trainer, "h20": h20}
    assert pools_of(settings) == {"train": trainer, "more": 6 - trainer, "h20": h20, "hosts": 1}


def test_a_pool_that_nobody_uses_is_left_out() -> None:
    settings = split().settings(6, {"H20": 2})
    assert pools_of(settings) == {"train": 6, "h20": 2, "hosts": 1}
    check(simulated_config(PLANNED, settings))


def test_a_pool_that_is_named_elsewhere_stays() -> None:
    settings = {"placement.environment": "more", "placement.generate": {"more": 2, "h20": 2}}
    found = split(settings)
    assert found.stock("H800") == 5
    made = settings | found.settings(5, {"H20": 2})
    assert pools_of(made)["more"] == 1
    check(simulated_config(PLANNED, made))


def test_trainer_and_engines_share_the_only_pool_of_a_class() -> None:
    pools = {"pools": {"gpus": {"hardware": "H800", "devices": 8}}, "placement": {}, "engine.count": 3}
    found = split(pools)
    assert found.room("H800", 4) == 3  # one device is the environment host's
    made = pools | found.settings(4, {"H800": 3})
    config = simulated_config(PLANNED, made)
    assert config.engines_by_pool == {"gpus": 3}
    assert config.engine.count == 3
    check(config)


def test_what_the_configuration_has_is_no_change() -> None:
    found = split()
    current = found.current()
    settings = found.settings(3, {"H800": 3, "H20": 2})
    assert {key for key, value in settings.items() if value != current[key]} == {"training.devices"} | (
        {"placement.generate"} if settings["placement.generate"] != {"more": 3, "h20": 2} else set()
    )


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"pools.train.devices": 1}, "training.devices"),
        (
            {"training.devices": 1, "pools.train.devices": 1, "pools.more.devices": 1, "simulation.model": "qwen3-32b"},
            "at least",
        ),
        ({"simulation.model": "qwen3-480b-a35b"}, "an engine needs at least"),
        ({"simulation.model": "qwen9"}, "qwen9"),
    ],
)
def test_what_cannot_be_split_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        split(settings)


def test_a_trainer_that_cannot_hold_the_model_is_refused() -> None:
    with pytest.raises(PlanError, match=r"training qwen3-32b needs at least 8 H800"):
        split({"simulation.model": "qwen3-32b"})
