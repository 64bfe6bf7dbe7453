"""Modes are presets of switches, each of which can be set alone."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from rollart.config.checks import meaningless_settings
from rollart.config.config import Config
from rollart.config.modes import PRESETS, Mode, Switches

SECTIONS = {
    "alpha": "run",
    "update": "run",
    "stale": "run",
    "interaction": "rollout",
    "scoring": "rollout",
    "transfer": "weights",
}
"""Where each switch is set."""

VALUES: list[tuple[str, Any]] = [
    ("alpha", 2),
    ("update", "eager"),
    ("update", "at_batch"),
    ("stale", "abort"),
    ("stale", "wait"),
    ("stale", "withhold"),
    ("stale", "train"),
    ("interaction", "trajectory"),
    ("interaction", "batch"),
    ("scoring", "trajectory"),
    ("scoring", "batch"),
    ("transfer", "asynchronous"),
    ("transfer", "blocking"),
]


def config(mode: Mode, **switches: Any) -> Config:
    sections: dict[str, dict[str, Any]] = {"run": {"mode": mode}}
    for name, value in switches.items():
        sections.setdefault(SECTIONS[name], {})[name] = value
    return Config.model_validate({"domains": {"lake": {"env": "frozen_lake"}}, **sections})


def test_every_mode_is_a_preset_and_rollart_is_the_default() -> None:
    assert set(PRESETS) == set(get_args(Mode))
    assert set(SECTIONS) == set(Switches._fields)
    default = Config.model_validate({"domains": {"lake": {"env": "frozen_lake"}}})
    assert default.switches == PRESETS["rollart"]


@pytest.mark.parametrize("mode", PRESETS)
def test_a_preset_is_in_effect_and_makes_sense(mode: Mode) -> None:
    assert config(mode).switches == PRESETS[mode]
    assert config(mode).alpha == PRESETS[mode].alpha
    assert meaningless_settings(config(mode)) == []


@pytest.mark.parametrize("mode", PRESETS)
@pytest.mark.parametrize(("name", "value"), VALUES)
def test_each_switch_can_be_set_alone(mode: Mode, name: str, value: Any) -> None:
    given = config(mode, **{name: value})
    assert given.switches == PRESETS[mode]._replace(**{name: value})
    synchronous = PRESETS[mode].alpha == 0
    refused = synchronous and (name, value) in (("alpha", 2), ("update", "at_batch"))
    assert [key for key, _ in meaningless_settings(given)] == ([f"run.{name}"] if refused else [])


def test_a_switch_that_says_what_the_mode_says_changes_nothing() -> None:
    for mode, preset in PRESETS.items():
        assert config(mode, **preset._asdict()).switches == preset


def test_the_modes_differ_as_their_systems_do() -> None:
    """One step from each to the next, as the modes' page describes them."""
    sync, plus, one_off, areal, rollart = (PRESETS[mode] for mode in PRESETS)
    assert sync._replace(interaction="trajectory", scoring="trajectory") == plus
    assert plus._replace(alpha=1, update="at_batch") == one_off
    assert one_off._replace(update="eager", stale="train") == areal
    assert areal._replace(stale="abort", transfer="asynchronous") == rollart


@pytest.mark.parametrize(
    ("name", "value"), [("alpha", -1), ("stale", "drop"), ("interaction", "group"), ("transfer", "")]
)
def test_a_value_that_no_switch_has_is_refused(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"{SECTIONS[name]}.{name}"):
        config("rollart", **{name: value})
