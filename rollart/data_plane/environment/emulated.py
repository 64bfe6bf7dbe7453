"""An environment of lengths and latencies only, for virtual time.

It answers as a real environment does, through the same sessions, but its observations are lengths
(:class:`~rollart.types.LengthSpan`) and its waiting is ``asyncio.sleep``, so that a virtual-time loop
plays days in seconds. Everything is drawn from the seeds and the arguments alone: what belongs to the task
instance (number of turns, first observation) from the seed of ``reset``, what differs between the members
of a group (latencies, failures, success) from the episode's seed.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Mapping, Sequence
from typing import Any

from rollart.data_plane.environment.env import Env, Observation, StepResult
from rollart.types import LengthSpan, derive_seed

Draw = float | Sequence[float] | Mapping[str, float]
"""A number; ``[low, high]``, uniform; or ``{median: m, sigma: s, max: x}``, log-normal, cut at ``max``."""

_LOG_NORMAL = {"median", "sigma", "max"}


class Emulated(Env):
    """See the module docstring.

    Args:
        turns: Steps until the episode terminates, at least 1.
        first_observation, observation: Tokens of the first and of every further observation.
        reset_seconds, step_seconds: Latencies.
        reset_error, reset_hang, step_error, step_hang: Probability, for each call, of raising (after the
            latency) or of never returning.
        success: Probability that the episode succeeds; its last step then pays 1, every other step 0.
        episode: Seed of this one episode; given by the session.

    Raises:
        ValueError: an argument is not a distribution, or not a probability.
    """

    def __init__(
        self,
        turns: Draw = 4,
        first_observation: Draw = 64,
        observation: Draw = 16,
        reset_seconds: Draw = 0.0,
        step_seconds: Draw = 0.0,
        reset_error: float = 0.0,
        reset_hang: float = 0.0,
        step_error: float = 0.0,
        step_hang: float = 0.0,
        success: float = 0.5,
        episode: int = 0,
    ) -> None:
        self._turns = _checked_draw("turns", turns)
        self._first_observation = _checked_draw("first_observation", first_observation)
        self._observation = _checked_draw("observation", observation)
        self._reset_seconds = _checked_draw("reset_seconds", reset_seconds)
        self._step_seconds = _checked_draw("step_seconds", step_seconds)
        self._reset_faults = _checked_share("reset_error", reset_error), _checked_share("reset_hang", reset_hang)
        self._step_faults = _checked_share("step_error", step_error), _checked_share("step_hang", step_hang)
        self._success = _checked_share("success", success)
        self._episode = episode
        self._left = 0
        self._member = random.Random(episode)

    async def reset(self, seed: int, task: int) -> Observation:
        instance = random.Random(derive_seed(seed, "emulated"))
        self._member = random.Random(derive_seed(self._episode, "emulated", seed))
        self._left = max(1, round(draw(self._turns, instance)))
        first = max(1, round(draw(self._first_observation, instance)))
        await self._wait("reset", self._reset_seconds, self._reset_faults)
        return LengthSpan(first)

    async def step(self, action: str) -> StepResult:
        await self._wait("step", self._step_seconds, self._step_faults)
        self._left -= 1
        length = LengthSpan(max(1, round(draw(self._observation, self._member))))
        if self._left > 0:
            return length, 0.0, False, False, {}
        success = self._member.random() < self._success
        return length, float(success), True, False, {"success": success}

    def random_action(self, seed: int) -> str:
        return ""

    async def _wait(self, method: str, seconds: Draw, faults: tuple[float, float]) -> None:
        latency = draw(seconds, self._member)
        fate = self._member.random()
        error, hang = faults
        if fate < hang:
            await asyncio.get_running_loop().create_future()
        if latency > 0:
            await asyncio.sleep(latency)
        if fate < hang + error:
            raise RuntimeError(f"emulated failure of {method}")


def draw(distribution: Draw, source: random.Random) -> float:
    """One value of a distribution, from the next numbers of ``source``."""
    if isinstance(distribution, Mapping):
        value = distribution["median"] * math.exp(source.gauss(0.0, distribution["sigma"]))
        return min(value, distribution.get("max", math.inf))
    if isinstance(distribution, Sequence):
        return source.uniform(distribution[0], distribution[1])
    return distribution


def _checked_draw(name: str, value: Any) -> Draw:
    if isinstance(value, Mapping):
        valid = {"median", "sigma"} <= set(value) <= _LOG_NORMAL and all(number >= 0 for number in value.values())
    elif isinstance(value, Sequence) and not isinstance(value, str):
        valid = len(value) == 2 and 0 <= value[0] <= value[1]
    else:
        valid = isinstance(value, int | float) and value >= 0
    if not valid:
        raise ValueError(
            f"{name} is {value!r}: give a number, [low, high], or {{median: ..., sigma: ..., max: ...}}, none negative"
        )
    return value  # type: ignore[no-any-return]


def _checked_share(name: str, value: float) -> float:
    if not 0.0 <= value <= 1.0:
        raise ValueError(f"{name} is {value!r}: a probability lies between 0 and 1")
    return value
