"""What varies between the runs of the property tests."""

from __future__ import annotations

from typing import Any

import msgspec

from rollart.config.config import Config
from rollart.config.modes import PRESETS, Mode, Switches

NEVER = 50
"""Failed groups in a row that no scenario reaches by chance."""


class Scenario(msgspec.Struct, frozen=True):
    """What varies between runs."""

    seed: int = 0
    alpha: int = 1
    """Only read by modes that train behind their rollout."""
    mode: Mode = "rollart"
    update: str | None = None
    stale: str | None = None
    interaction: str | None = None
    scoring: str | None = None
    transfer: str | None = None
    """Switches that are not the mode's."""
    iterations: int = 3
    weights: tuple[float, ...] = (1.0, 1.0)
    groups_per_batch: int = 4
    group_size: int = 2
    turns: int = 3
    redundant_members: int = 0
    redundant_groups: int = 0
    max_environments: int = 64
    hosts: int = 1
    engines: int = 1
    retries: int = 1
    starvation_limit: int = NEVER
    """Below :data:`NEVER` a run may rightly end because its last domain was suspended."""
    mix_tolerance: float = 1.0
    filter_zero_variance: bool = False
    mask_truncated: bool = False
    slow: tuple[float, float] | dict[str, float] = (0.0, 0.2)
    """Seconds of a step in the first domain, a distribution as in a configuration."""
    fast: tuple[float, float] = (0.0, 0.05)
    step_error: float = 0.0
    reset_error: float = 0.0
    step_hang: float = 0.0
    train: float = 0.3
    publish: float = 0.05
    report: float = 0.0
    evaluate_every: int = 0
    kills: tuple[tuple[float, int], ...] = ()
    """When the process of which host dies, in virtual seconds."""
    restart: tuple[float, int] = (0.0, 0)
    """Seconds until a host is back, and how many starts fail before one succeeds."""
    host_restarts: int = 100
    death: tuple[float, str] | None = None
    """When which engine or the trainer dies, which ends the run."""
    lost_answers: float = 0.0
    """Share of the requests that their engine never answers."""
    answer_timeout: float = 1800.0
    rows: int = 64
    """Requests that decode together, and sessions that an engine keeps: with fewer than there are, some are missed."""
    max_train_seconds: float | None = None
    hopeless: bool = False
    """Nothing ever starts in the first domain."""
    outdoors: bool = False
    """The environments feel the weather (:mod:`weather`)."""

    @property
    def switches(self) -> Switches:
        return config_of(self).switches


def config_of(scenario: Scenario) -> Config:
    domains: dict[str, Any] = {}
    for number, weight in enumerate(scenario.weights):
        domains[f"d{number}"] = {
            "env": "weather:Outdoors" if scenario.outdoors else "emulated",
            "isolation": "inline",
            "weight": weight,
            "max_turns": scenario.turns,
            "max_context": 4096,
            "truncated": "mask" if scenario.mask_truncated else "train",
            "reset_timeout": 2.0,
            "step_timeout": 2.0,
            "args": {
                "turns": [1, scenario.turns + 1],
                "first_observation": [2, 10],
                "observation": [1, 6],
                "reset_seconds": [0.0, 0.1],
                "step_seconds": scenario.slow if number == 0 else scenario.fast,
                "reset_error": 1.0 if scenario.hopeless and number == 0 else scenario.reset_error,
                "step_error": scenario.step_error,
                "step_hang": scenario.step_hang,
            },
        }
    return Config.model_validate(
        {
            "run": {
                "seed": scenario.seed,
                "mode": scenario.mode,
                "alpha": scenario.alpha if PRESETS[scenario.mode].alpha else None,
                "update": scenario.update,
                "stale": scenario.stale,
                "iterations": scenario.iterations,
                "max_train_seconds": scenario.max_train_seconds,
            },
            "domains": domains,
            "rollout": {
                "groups_per_batch": scenario.groups_per_batch,
                "group_size": scenario.group_size,
                "redundant_members": scenario.redundant_members,
                "redundant_groups": scenario.redundant_groups,
                "max_environments": scenario.max_environments,
                "retries": scenario.retries,
                "mix_tolerance": scenario.mix_tolerance,
                "filter_zero_variance": scenario.filter_zero_variance,
                "starvation_limit": scenario.starvation_limit,
                "hosts": scenario.hosts,
                "host_restarts": scenario.host_restarts,
                "interaction": scenario.interaction,
                "scoring": scenario.scoring,
            },
            "weights": {"transfer": scenario.transfer},
            "engine": {
                "count": scenario.engines,
                "max_rows": scenario.rows,
                "max_sessions": scenario.rows,
                "answer_timeout": scenario.answer_timeout,
            },
            "log": {"turns": True},
            "evaluation": {"instances": 2 if scenario.evaluate_every else 0, "every": scenario.evaluate_every},
        }
    )
