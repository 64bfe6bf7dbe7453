"""A rough estimate of a run's step time in closed form: what the planner screens thousands of candidates with.

Each hardware class is a closed queueing network with the means of its domains: trajectories alternate between an engine
and their environment, and an engine's throughput at a number of rows is that of the performance model. The step time is
the longest of training and of each class's share of a batch, or their sum if training waits for rollout. It knows no
tails, no staleness and no start-up, so the planner only ranks by it; the simulator decides.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from rollart.config.draw import mean_of
from rollart.config.simulation import SimulatedConfig, WorkloadConfig
from rollart.data_plane.generation.emulated_models import SpeedModel

CHUNK = 512
"""Prompt tokens of the step by which the price of a prompt token is taken."""


class Demand(msgspec.Struct, frozen=True):
    """What a trajectory asks for, on average.

    Attributes:
        prompt: Prompt tokens computed (each once: the rest is in the prefix cache).
        generated: Tokens generated.
        context: Tokens held while it generates.
        away: Seconds outside of the engine: resets, steps, reward.
        total: Tokens at its end.
    """

    prompt: float
    generated: float
    context: float
    away: float
    total: float

    @classmethod
    def of(cls, workload: WorkloadConfig) -> Demand:
        """The means of a workload, cut at its context."""
        turns = max(1.0, mean_of(workload.turns))
        if workload.max_turns is not None:
            turns = min(turns, workload.max_turns)
        first, more, action = (
            mean_of(workload.first_observation),
            mean_of(workload.observation),
            mean_of(workload.action),
        )
        prompt, generated = first + more * (turns - 1), action * turns
        cut = min(1.0, workload.max_context / (prompt + generated))
        away = (
            mean_of(workload.reset_seconds) + turns * mean_of(workload.step_seconds) + mean_of(workload.reward_seconds)
        )
        total = cut * (prompt + generated)
        return cls(cut * prompt, cut * generated, (first + total) / 2, away, total)

    @classmethod
    def mixed(cls, parts: Mapping[Demand, float]) -> Demand:
        """The mean of several, by their weights."""
        whole = sum(parts.values())

        def mean(name: str) -> float:
            total: float = sum(getattr(part, name) * weight for part, weight in parts.items())
            return total / whole

        tokens = sum(part.context * part.generated * weight for part, weight in parts.items())
        generated = mean("generated")
        return cls(mean("prompt"), generated, tokens / (generated * whole), mean("away"), mean("total"))


def trajectories_per_second(speed: SpeedModel, demand: Demand, alive: float, max_rows: int) -> float:
    """Throughput of one engine that ``alive`` trajectories share, those in their environments included."""
    most = float(max_rows)
    if speed.kv_tokens is not None:
        most = max(1.0, min(most, speed.kv_tokens / demand.context))
    low, high = 0.0, min(most, alive)
    for _ in range(40):
        rows = (low + high) / 2
        if rows + demand.away * _throughput(speed, demand, rows) < alive:
            low = rows
        else:
            high = rows
    return _throughput(speed, demand, high)


def _throughput(speed: SpeedModel, demand: Demand, rows: float) -> float:
    """Trajectories that an engine finishes in a second with ``rows`` requests in its batch."""
    whole = max(1, round(rows))
    base, each = speed.decode(whole)
    context = round(whole * demand.context)
    step = base + each * context
    attended = round(CHUNK * demand.context)
    chunk = speed.mixed(whole, 1, context + round(demand.context), CHUNK, attended) - step
    seconds = demand.generated * step / max(rows, 1e-9) + demand.prompt * max(0.0, chunk) / CHUNK
    return 1.0 / seconds


def alive(config: SimulatedConfig) -> float:
    """Trajectories alive on average: a batch, and with a bound above 0 about half of what admission adds."""
    batch = config.rollout.groups_per_batch * config.rollout.group_size
    return min(config.rollout.max_environments, batch * (1.0 + config.alpha / 2.0))


class Estimate(msgspec.Struct, frozen=True):
    """A step's parts in seconds; ``classes`` is the time that each hardware class takes for its share of a batch."""

    train: float
    classes: dict[str, float]
    overlapped: bool

    @property
    def step(self) -> float:
        """Seconds of a step."""
        rollout = max(self.classes.values())
        return max(self.train, rollout) if self.overlapped else self.train + rollout

    @property
    def bottleneck(self) -> str:
        """What takes longest."""
        slowest = max(self.classes, key=lambda name: self.classes[name])
        return "training" if self.train >= self.classes[slowest] else f"generation on {slowest}"
