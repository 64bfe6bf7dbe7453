"""The same run, some times as fast: how an emulation in real time plays in minutes what takes its hardware hours.

Everything that takes time by the performance model or by a workload is divided by one factor, nothing else changes,
so a simulation of the result gives the original's numbers with all seconds divided. Called by whoever emulates.
"""

from __future__ import annotations

from typing import Any

from rollart.config.draw import multiplied
from rollart.config.simulation import SimulatedConfig
from rollart.simulation.constants import CONSTANTS, Constants

LEAST_DEADLINE = 10.0
"""Seconds that a deadline keeps at least: a shorter one would catch the hiccups of a busy machine, not what hangs."""

_SHARES = frozenset(
    ("bandwidth_efficiency", "gemm_efficiency", "attention_efficiency", "all_reduce_efficiency", "train_efficiency")
)
"""Constants that multiply a rate of a hardware class; other shares are of a rate that is a constant itself."""


def scaled(config: SimulatedConfig, factor: float) -> SimulatedConfig:
    """The run ``factor`` times as fast.

    Two things keep their seconds, so that a run in which they happen is not scaled exactly: deadlines at
    :data:`LEAST_DEADLINE`, which end what hangs, and the pause before a failed reward is tried again.

    Raises:
        ValueError: the factor is not above 0.
    """
    if not factor > 0:
        raise ValueError(f"the factor is {factor}: give a number above 0")
    data = config.model_dump()
    simulation = data["simulation"]
    for workload in simulation["workloads"].values():
        _faster(workload, ("reset_seconds", "step_seconds", "reward_seconds"), factor)
        _faster_incident(workload, factor)
    _faster(simulation["reward"], ("overhead", "cold_start", "keep_alive"), factor)
    simulation["constants"] = _constants(config, factor)
    for domain in data["domains"].values():
        _faster(domain["args"], ("reset_seconds", "step_seconds"), factor)
        _faster_incident(domain["args"], factor)
        _sooner(domain, ("reset_timeout", "step_timeout"), factor)
        _faster(domain["reward"], ("timeout",), factor)
    _sooner(data["engine"], ("answer_timeout",), factor)
    _faster(data["rollout"], ("retry_delay",), factor)
    _faster(data["log"], ("utilisation_seconds",), factor)
    if data["run"]["max_train_seconds"] is not None:
        _faster(data["run"], ("max_train_seconds",), factor)
    return SimulatedConfig.model_validate(data)


def _faster(section: dict[str, Any], keys: tuple[str, ...], factor: float) -> None:
    section |= {key: multiplied(section[key], 1 / factor) for key in keys}


def _faster_incident(section: dict[str, Any], factor: float) -> None:
    if section.get("reset_slow") is not None:
        section["reset_slow"] = dict(section["reset_slow"])
        _faster(section["reset_slow"], ("seconds",), factor)


def _sooner(section: dict[str, Any], keys: tuple[str, ...], factor: float) -> None:
    section |= {key: max(section[key] / factor, min(section[key], LEAST_DEADLINE)) for key in keys}


def _constants(config: SimulatedConfig, factor: float) -> dict[str, float]:
    """Every constant whose unit has seconds in it, and the shares by which rates of the hardware catalogue count."""
    values = Constants.with_overrides(config.simulation.constants)
    changed = {}
    for name, constant in CONSTANTS.items():
        unit, value = constant.unit, getattr(values, name)
        if unit == "s" or unit.startswith("s a "):
            changed[name] = value / factor
        elif unit.startswith("bytes/s") or name in _SHARES:
            changed[name] = value * factor
    return {**config.simulation.constants, **changed}
