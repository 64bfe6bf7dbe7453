"""Scores a finished trajectory. Infrastructure failure is never a reward: it raises, typed.

``make_scorer`` makes the scorer that a domain's ``reward`` section names; the EnvManager awaits
``score(trajectory, success)`` once for each finished episode. Each try has a deadline; a try that raises or
passes it is repeated after a pause that doubles, and when the tries are used up a :class:`RewardError` ends
the trajectory as ``failed(reward_error)`` or ``failed(reward_timeout)``.
"""

from __future__ import annotations

import asyncio
import inspect
import math
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import numpy as np

from rollart.config.domains import RewardConfig
from rollart.registry import first_cause, import_path
from rollart.runtime.offload import offload
from rollart.types import FailureKind, Score, Trajectory

FIRST_PAUSE = 0.2
"""Seconds before the second try; doubles with each further one."""

MAX_BLOCKING = 8
"""Calls of one blocking reward function at once. One that never returns keeps its place for good."""


class RewardError(RuntimeError):
    """No score could be computed.

    Attributes:
        kind: ``reward_error`` or ``reward_timeout``, after the last try.
    """

    def __init__(self, kind: FailureKind, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class Scorer(Protocol):
    """Scores trajectories of one domain."""

    async def score(self, trajectory: Trajectory, success: bool | None) -> Score:
        """The score; ``success`` is the environment's own verdict.

        Raises:
            RewardError: no score could be computed.
        """
        ...


def make_scorer(config: RewardConfig) -> Scorer:
    """The scorer of a domain.

    Raises:
        ValueError: the function cannot be imported, or its place is not ``inline://``.
    """
    scheme = config.url.partition("://")[0]
    if scheme != "inline":
        raise ValueError(f"reward.url '{config.url}': there is no provider for '{scheme}://', use 'inline://'")
    if config.function == "environment":
        return EnvironmentScorer()
    return FunctionScorer(config)


class EnvironmentScorer:
    """Sums what ``step`` paid; success is the environment's verdict."""

    async def score(self, trajectory: Trajectory, success: bool | None) -> Score:
        return Score(math.fsum(turn.reward for turn in trajectory.turns()), success)


class FunctionScorer:
    """A user's function, sync or async, from a trajectory to a number, a bool or a :class:`Score`.

    A bool is a verdict: its value is 1 or 0 and it is the success. A number leaves success to the
    environment's verdict. A sync function runs in a thread, so that its deadline can pass.

    Raises:
        ValueError: the function cannot be imported or called.
    """

    def __init__(self, config: RewardConfig) -> None:
        try:
            function = import_path(config.function, "reward function")
        except Exception as error:
            cause = str(error) if type(error) is LookupError else first_cause(error)
            raise ValueError(f"reward.function: {cause}") from error
        if not callable(function):
            kind = type(function).__name__
            raise ValueError(f"reward.function '{config.function}' is a {kind}, not a function")  # noqa: TRY004
        self._name = config.function
        self._function: Callable[[Trajectory], Any] = function
        self._is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
            getattr(function, "__call__", None)  # noqa: B004 - an object with an async __call__
        )
        self._timeout = config.timeout
        self._tries = config.retries + 1
        self._places = asyncio.Semaphore(MAX_BLOCKING)

    async def score(self, trajectory: Trajectory, success: bool | None) -> Score:
        pause = FIRST_PAUSE
        for attempt in range(1, self._tries + 1):
            try:
                return await self._try(trajectory, success)
            except RewardError as error:
                if attempt == self._tries:
                    tries = f" ({attempt} tries)" if attempt > 1 else ""
                    raise RewardError(error.kind, f"{error}{tries}") from error
            await asyncio.sleep(pause)
            pause *= 2
        raise AssertionError("unreachable: the last try returns or raises")

    async def _try(self, trajectory: Trajectory, success: bool | None) -> Score:
        deadline: asyncio.Timeout | None = None
        try:
            async with asyncio.timeout(self._timeout) as deadline:
                value = await (self._function(trajectory) if self._is_async else self._blocking(trajectory))
            return _as_score(value, success)
        except Exception as error:
            if isinstance(error, TimeoutError) and deadline is not None and deadline.expired():
                message = f"{self._name} did not return within {self._timeout:g} s"
                raise RewardError(FailureKind.REWARD_TIMEOUT, message) from error
            raise RewardError(FailureKind.REWARD_ERROR, f"{self._name} raised {first_cause(error)}") from error

    async def _blocking(self, trajectory: Trajectory) -> Any:
        await self._places.acquire()
        call = asyncio.ensure_future(offload(self._function, trajectory))
        call.add_done_callback(lambda _: self._places.release())
        result = await asyncio.shield(call)
        return await result if isinstance(result, Awaitable) else result


def _as_score(value: Any, success: bool | None) -> Score:
    if isinstance(value, Score):
        score = value
    elif isinstance(value, bool | np.bool_):
        score = Score(float(value), bool(value))
    else:
        try:
            score = Score(float(value), success)
        except (TypeError, ValueError):
            raise TypeError(f"a reward is a number, a bool or a Score, not {repr(value)[:80]}") from None
    if not math.isfinite(score.value):
        raise ValueError(f"a reward is finite, not {score.value}")
    return score
