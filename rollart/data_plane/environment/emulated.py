"""An environment of lengths and latencies only, for virtual time.

It answers as a real environment does, through the same sessions, but its observations are lengths
(:class:`~rollart.types.LengthSpan`) and its waiting is ``asyncio.sleep``, so that a virtual-time loop
plays days in seconds. Everything is drawn from the seeds and the arguments alone: what belongs to the task
instance (number of turns, first observation) from the seed of ``reset``, what differs between the members
of a group (latencies, failures, success) from the episode's seed, and what strikes many environments at once
(incidents) from a seed of the run. How often something fails changes no other draw.

There is one environment for each episode and millions of steps, so the arguments are compiled once for all
episodes of a domain.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from typing import Any, NamedTuple

from rollart.config.draw import Draw, Sampler, sampler
from rollart.data_plane.environment.env import Env, Observation, StepResult
from rollart.types import LengthSpan, derive_seed

_SEEDS = 2.0**63
"""Number of values of a derived seed."""

_KEPT = 256
"""Compiled sets of arguments that are kept; a run has one for each domain."""


class Incident(NamedTuple):
    """What makes the resets of many environments slow at once.

    Attributes:
        probability: That it strikes a run of ``tasks`` consecutive tasks.
        seconds: By how much longer each struck reset takes.
        share: Of the environments of these tasks, how many are struck.
        tasks: How many tasks it strikes together.
        seed: Of the run.
    """

    probability: float
    seconds: Sampler
    share: float
    tasks: int
    seed: int

    def strikes(self, task: int) -> bool:
        """Whether ``task`` is among those of an incident."""
        return derive_seed(self.seed, "incident", task // self.tasks) < self.probability * _SEEDS


class Behaviour(NamedTuple):
    """The arguments of :class:`Emulated`, compiled; of two faults, the bounds of the fates that mean them."""

    turns: Sampler
    first_observation: Sampler
    observation: Sampler
    reset_seconds: Sampler
    step_seconds: Sampler
    reset_hang: float
    reset_fault: float
    step_hang: float
    step_fault: float
    success: float
    reset_slow: Incident | None


class Emulated(Env):
    """See the module docstring.

    Args:
        turns: Steps until the episode terminates, at least 1.
        first_observation, observation: Tokens of the first and of every further observation.
        reset_seconds, step_seconds: Latencies.
        reset_error, reset_hang, step_error, step_hang: Probability, for each call, of raising (after the
            latency) or of never returning.
        reset_slow: Incidents: a mapping with the fields of :class:`Incident`, ``seconds`` being a distribution;
            ``share`` and ``tasks`` are 1 and ``seed`` is 0 unless given.
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
        reset_slow: Mapping[str, Any] | None = None,
        success: float = 0.5,
        episode: int = 0,
    ) -> None:
        arguments = (
            *(turns, first_observation, observation, reset_seconds, step_seconds),
            *(reset_error, reset_hang, step_error, step_hang, success, reset_slow),
        )
        self._behaviour = _behaviour(arguments)
        self._episode = episode
        self._left = 0
        self._member: random.Random

    async def reset(self, seed: int, task: int) -> Observation:
        behaviour = self._behaviour
        instance = random.Random(derive_seed(seed, "emulated"))
        self._member = member = random.Random(derive_seed(self._episode, "emulated", seed))
        self._left = max(1, round(behaviour.turns(instance)))
        first = max(1, round(behaviour.first_observation(instance)))
        latency = behaviour.reset_seconds(member)
        fate = member.random()
        slow = behaviour.reset_slow
        if slow is not None and slow.strikes(task) and member.random() < slow.share:
            latency += slow.seconds(member)
        if fate < behaviour.reset_fault:
            await _fault("reset", latency, hang=fate < behaviour.reset_hang)
        if latency > 0:
            await asyncio.sleep(latency)
        return LengthSpan(first)

    async def step(self, action: str) -> StepResult:
        behaviour, member = self._behaviour, self._member
        latency = behaviour.step_seconds(member)
        fate = member.random()
        if fate < behaviour.step_fault:
            await _fault("step", latency, hang=fate < behaviour.step_hang)
        if latency > 0:
            await asyncio.sleep(latency)
        self._left -= 1
        length = LengthSpan(max(1, round(behaviour.observation(member))))
        if self._left > 0:
            return length, 0.0, False, False, {}
        success = member.random() < behaviour.success
        return length, float(success), True, False, {"success": success}

    def random_action(self, seed: int) -> str:
        return ""


async def _fault(method: str, latency: float, *, hang: bool) -> None:
    if hang:
        await asyncio.get_running_loop().create_future()
    await asyncio.sleep(latency)
    raise RuntimeError(f"emulated failure of {method}")


_compiled: dict[tuple[int, ...], tuple[tuple[Any, ...], Behaviour]] = {}
"""By the identities of the arguments, which are kept with it so that no other object can take their identity. All
episodes of a domain are made with the very objects of its configuration, which nobody changes."""


def _behaviour(arguments: tuple[Any, ...]) -> Behaviour:
    key = tuple(map(id, arguments))
    known = _compiled.get(key)
    if known is None:
        if len(_compiled) >= _KEPT:
            del _compiled[next(iter(_compiled))]
        known = _compiled[key] = (arguments, _compile(*arguments))
    return known[1]


def _compile(
    turns: Draw,
    first_observation: Draw,
    observation: Draw,
    reset_seconds: Draw,
    step_seconds: Draw,
    reset_error: float,
    reset_hang: float,
    step_error: float,
    step_hang: float,
    success: float,
    reset_slow: Mapping[str, Any] | None,
) -> Behaviour:
    hang_at_reset, hang_at_step = _share("reset_hang", reset_hang), _share("step_hang", step_hang)
    return Behaviour(
        turns=_sampler("turns", turns),
        first_observation=_sampler("first_observation", first_observation),
        observation=_sampler("observation", observation),
        reset_seconds=_sampler("reset_seconds", reset_seconds),
        step_seconds=_sampler("step_seconds", step_seconds),
        reset_hang=hang_at_reset,
        reset_fault=hang_at_reset + _share("reset_error", reset_error),
        step_hang=hang_at_step,
        step_fault=hang_at_step + _share("step_error", step_error),
        success=_share("success", success),
        reset_slow=None if reset_slow is None else _incident(reset_slow),
    )


def _incident(given: Mapping[str, Any]) -> Incident:
    if not {"probability", "seconds"} <= set(given) <= set(Incident._fields):
        fields = ", ".join(Incident._fields)
        raise ValueError(f"reset_slow is {dict(given)}: give probability and seconds, and nothing else but {fields}")
    tasks = given.get("tasks", 1)
    if not isinstance(tasks, int) or tasks < 1:
        raise ValueError(f"reset_slow.tasks is {tasks!r}: give a whole number, 1 or more")
    return Incident(
        _share("reset_slow.probability", given["probability"]),
        _sampler("reset_slow.seconds", given["seconds"]),
        _share("reset_slow.share", given.get("share", 1.0)),
        tasks,
        given.get("seed", 0),
    )


def _sampler(name: str, value: Any) -> Sampler:
    try:
        return sampler(value)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error


def _share(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0.0 <= value <= 1.0:
        raise ValueError(f"{name} is {value!r}: a probability lies between 0 and 1")
    return float(value)
