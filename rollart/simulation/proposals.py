"""What the planner found: settings, and the numbers to expect of them. Called by the planner and the command line."""

from __future__ import annotations

import shlex
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from rollart.config.simulation import SimulatedConfig
from rollart.resource_plane.binding import bind
from rollart.resource_plane.hardware import hardware
from rollart.resource_plane.planning import worker_requests
from rollart.resource_plane.pools import pools_of
from rollart.simulation.candidates import Objective
from rollart.simulation.simulator import AFFINITIES, SimulationResult


class Spread(msgspec.Struct, frozen=True):
    """Mean and standard deviation over the seeds."""

    mean: float
    std: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        return cls(statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else 0.0)


class Numbers(msgspec.Struct, frozen=True):
    """What one simulation gave.

    Attributes:
        step_time_s: As :mod:`rollart.simulation.measures` has it.
        tokens: Prompts and actions that a step trains.
        cost_per_million_tokens: Price of all pools and of serverless instances for a million of these (an H20-hour
            is 1), at the pace of the measured iterations.
        wasted_token_share: As :mod:`rollart.simulation.measures` has it.
        idle_share: Of the GPUs of the pools, and of other devices that train or generate, by their price; one without
            a worker is idle.
    """

    step_time_s: float
    tokens: float
    cost_per_million_tokens: float
    wasted_token_share: float
    idle_share: float


class Proposal(msgspec.Struct, frozen=True):
    """Settings, and what to expect of them under the seeds of the report.

    Attributes:
        settings: Values by dotted key in which it differs from the given configuration; none for that itself.
        step_time_s, tokens, cost_per_million_tokens, wasted_token_share, idle_share: As :class:`Numbers`.
        comparable_step_s: Step time at the number of tokens that the given configuration's step trains.
        gain: By how much its objective is below the given configuration's, as a share, seed by seed.
    """

    settings: dict[str, Any]
    step_time_s: Spread
    comparable_step_s: Spread
    tokens: Spread
    cost_per_million_tokens: Spread
    wasted_token_share: Spread
    idle_share: Spread
    gain: Spread


class Plan(msgspec.Struct, frozen=True):
    """The result.

    Attributes:
        objective: What was minimised.
        given: The configuration as it is.
        proposals: Best first; each differs from the others in more than numbers of devices.
        screened: Candidates that were estimated.
        simulations: How many were made.
        seeds: Of the report.
        settled: Whether the search ended because nothing was left to try, not because its budget was used.
    """

    objective: Objective
    given: Proposal
    proposals: list[Proposal]
    screened: int
    simulations: int
    seeds: tuple[int, ...]
    settled: bool


def numbers_of(config: SimulatedConfig, result: SimulationResult) -> Numbers:
    """The numbers of one simulation of a configuration."""
    measured = result.measured
    return Numbers(
        step_time_s=measured.step_time_s,
        tokens=measured.throughput_tokens_per_s * measured.step_time_s,
        cost_per_million_tokens=result.cost / result.seconds / measured.throughput_tokens_per_s * 1e6,
        wasted_token_share=measured.wasted_token_share,
        idle_share=_idle_share(config, measured.idle_share),
    )


def _idle_share(config: SimulatedConfig, by_place: Mapping[str, float]) -> float:
    bindings, _ = bind(pools_of(config.pools), worker_requests(config, AFFINITIES))
    busy = 0.0
    counted = {name for name, pool in config.pools.items() if hardware(pool.hardware).is_gpu}
    for binding in bindings:
        if binding.role in ("train", "generate"):
            counted.add(binding.pool)
            share = 1.0 - by_place.get(f"{binding.pool}/{binding.role}", 1.0)
            busy += share * len(binding.devices) * hardware(binding.hardware_class).cost
    pools = [config.pools[name] for name in counted]
    return 1.0 - busy / sum(pool.devices * hardware(pool.hardware).cost for pool in pools)


def overrides(settings: Mapping[str, Any]) -> str:
    """Settings as they are written on a command line, quoted for the shell."""
    return " ".join(shlex.quote(f"{key}={_written(value)}") for key, value in settings.items())


def _written(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{key}: {_written(each)}' for key, each in value.items())}}}"
    if isinstance(value, list):
        return f"[{', '.join(_written(each) for each in value)}]"
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
