"""One episode in one environment, as the EnvManager holds it: reset, step, close, each with a deadline.

Two implementations keep one contract:

* ``inline`` (:class:`InlineSession`): the environment lives on this event loop. No thread, no process, so
  it also runs in virtual time. A deadline can end an async environment; a sync one that blocks, blocks
  the loop.
* ``process`` (:mod:`rollart.data_plane.environment.process`): the environment lives in a child process,
  one episode in it at a time. One that hangs or crashes is killed and its siblings never notice.

Contract: ``reset`` once, then ``step`` until the outcome is done, then ``close`` exactly when the episode
is over, whatever happened. Everything that goes wrong in the environment is an :class:`EnvironmentFailure`
with its kind and first cause. Cancelling a call ends the environment; ``close`` still has to be called.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import math
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from rollart.config.domains import DomainConfig
from rollart.data_plane.environment.env import Observation
from rollart.data_plane.environment.registry import default_isolation, make_env
from rollart.types import FailureKind, LengthSpan, Purpose

if TYPE_CHECKING:
    from rollart.data_plane.environment.process import ProcessPool

logger = logging.getLogger(__name__)

CLOSE_SECONDS = 10.0
"""An environment that takes longer to close is left alone (inline) or killed (process)."""


class EnvironmentFailure(RuntimeError):
    """The environment failed, not the policy: the episode ends as ``failed(kind)`` and has no reward.

    Attributes:
        kind: ``reset_error``, ``reset_timeout``, ``step_error``, ``step_timeout`` or ``environment_crash``.
    """

    def __init__(self, kind: FailureKind, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class StepOutcome(msgspec.Struct, frozen=True, array_like=True):
    """What one step did.

    Attributes:
        observation: What the policy sees next.
        reward: Finite.
        terminated: The task is over.
        truncated: The environment's own limit cut the episode.
        success: The unshaped verdict so far; ``None`` where the task has none.
        metrics: Numbers the environment reports.
        valid: Whether the action could be understood.
    """

    observation: Observation
    reward: float
    terminated: bool
    truncated: bool
    success: bool | None = None
    metrics: dict[str, float] = {}
    valid: bool = True

    @property
    def done(self) -> bool:
        return self.terminated or self.truncated


class EnvSession(ABC):
    """See the module docstring for the contract."""

    @abstractmethod
    async def reset(self, seed: int, task: int) -> Observation:
        """Make the environment and start instance ``task``.

        Raises:
            EnvironmentFailure: it raised, hung, crashed, or returned no observation.
        """

    @abstractmethod
    async def step(self, action: str) -> StepOutcome:
        """Act.

        Raises:
            EnvironmentFailure: it raised, hung, crashed, or returned no valid outcome.
        """

    @abstractmethod
    async def random_action(self, seed: int) -> str:
        """A random valid action.

        Raises:
            EnvironmentFailure: the environment declares no random policy.
        """

    @abstractmethod
    async def close(self) -> None:
        """End the environment. Idempotent, never raises; what goes wrong is logged."""


def open_session(
    config: DomainConfig, *, purpose: Purpose = Purpose.TRAIN, episode: int = 0, pool: ProcessPool | None = None
) -> EnvSession:
    """A session for one episode of a domain; nothing is started before ``reset``.

    Args:
        config: The domain. Its ``isolation`` decides where the environment lives; by default inline for
            built-in environments and in a process of its own for users' code.
        purpose: Evaluation episodes get the held-out instances.
        episode: Seed of what differs between the members of a group, e.g. derived from the trajectory id.
        pool: The host's child processes, needed for isolation ``process``.

    Raises:
        ValueError: isolation ``process`` without a pool.
    """
    isolation = config.isolation or default_isolation(config.env, config.args)
    if isolation == "inline":
        return InlineSession(config, purpose, episode)
    if pool is None:
        raise ValueError(f"environment '{config.env}' runs in processes of its own: give open_session a ProcessPool")
    return pool.session(config, purpose, episode)


class InlineSession(EnvSession):
    """The environment on this event loop."""

    def __init__(self, config: DomainConfig, purpose: Purpose, episode: int) -> None:
        self._config = config
        self._purpose = purpose
        self._episode = episode
        self._env: Any = None

    async def reset(self, seed: int, task: int) -> Observation:
        if self._env is not None:
            raise RuntimeError("a session is one episode: open another one to reset again")
        timeout = self._config.reset_timeout
        started = await self._call("reset", timeout, FailureKind.RESET_ERROR, FailureKind.RESET_TIMEOUT, seed, task)
        return self._checked(checked_observation, started, "reset", FailureKind.RESET_ERROR)

    async def step(self, action: str) -> StepOutcome:
        timeout = self._config.step_timeout
        result = await self._call("step", timeout, FailureKind.STEP_ERROR, FailureKind.STEP_TIMEOUT, action)
        return self._checked(checked_outcome, result, "step", FailureKind.STEP_ERROR)

    async def random_action(self, seed: int) -> str:
        timeout = self._config.step_timeout
        kinds = FailureKind.STEP_ERROR, FailureKind.STEP_TIMEOUT
        return str(await self._call("random_action", timeout, *kinds, seed))

    async def close(self) -> None:
        env, self._env = self._env, None
        if env is None:
            return
        try:
            closing = env.close() if hasattr(env, "close") else None
            if inspect.isawaitable(closing):
                async with asyncio.timeout(CLOSE_SECONDS):
                    await closing
        except (Exception, SystemExit) as error:  # noqa: BLE001 - user code; the episode has ended, nothing else may fail
            logger.warning("environment '%s' did not close: %s", self._config.env, first_cause(error))

    async def _call(
        self, method: str, timeout: float, on_error: FailureKind, on_timeout: FailureKind, *args: Any
    ) -> Any:
        deadline: asyncio.Timeout | None = None
        try:
            if self._env is None:
                if method != "reset":
                    raise RuntimeError(f"{method} before reset, or after close")
                self._env = make_env(self._config.env, self._config.args, self._purpose, self._episode)
            result = method_of(self._env, method)(*args)
            if not inspect.isawaitable(result):
                return result
            async with asyncio.timeout(timeout) as deadline:
                return await result
        except (Exception, SystemExit) as error:
            if isinstance(error, TimeoutError) and deadline is not None and deadline.expired():
                message = f"{self._config.env}: {method} did not return within {timeout:g} s"
                raise EnvironmentFailure(on_timeout, message) from error
            raise EnvironmentFailure(on_error, f"{self._config.env}: {method} raised {first_cause(error)}") from error

    def _checked(self, check: Callable[[Any], Any], value: Any, method: str, kind: FailureKind) -> Any:
        try:
            return check(value)
        except (TypeError, ValueError) as error:
            raise EnvironmentFailure(kind, f"{self._config.env}: {method} {error}") from error


def method_of(env: Any, name: str) -> Callable[..., Any]:
    """A method of an environment.

    Raises:
        LookupError: it has none of that name.
    """
    method = getattr(env, name, None)
    if method is None:
        raise LookupError(f"{type(env).__name__} has no method '{name}'")
    return method  # type: ignore[no-any-return]


def checked_observation(value: Any) -> Observation:
    """``value`` as an observation.

    Raises:
        TypeError: it is none; the message completes "reset ..." or "step ...".
    """
    if isinstance(value, str | LengthSpan):
        return value
    if isinstance(value, list) and value and all(_is_message(item) for item in value):
        return value
    form = f"a tuple of {len(value)}" if isinstance(value, tuple) else repr(value)[:80]
    hint = "; env 'gym_text' takes Gymnasium environments" if isinstance(value, tuple) else ""
    raise TypeError(
        f"must give an observation as text or as a list of {{'role': ..., 'content': ...}} messages, not {form}{hint}"
    )


def _is_message(item: Any) -> bool:
    if not isinstance(item, dict) or not isinstance(item.get("role"), str):
        return False
    return all(isinstance(key, str) and isinstance(text, str) for key, text in item.items()) and "content" in item


def checked_outcome(result: Any) -> StepOutcome:
    """The five values of ``step`` as a :class:`StepOutcome`.

    Raises:
        TypeError, ValueError: they are something else; the message completes "step ...".
    """
    if not isinstance(result, tuple) or len(result) != 5:
        raise TypeError(f"must return (observation, reward, terminated, truncated, info), not {repr(result)[:80]}")
    observation, reward, terminated, truncated, info = result
    value = float(reward)
    if not math.isfinite(value):
        raise ValueError(f"paid a reward of {value}")
    observation = checked_observation(observation)
    if not info:
        return StepOutcome(observation, value, bool(terminated), bool(truncated))
    success = info.get("success")
    return StepOutcome(
        observation,
        value,
        bool(terminated),
        bool(truncated),
        None if success is None else bool(success),
        {str(name): float(number) for name, number in info.get("metrics", {}).items()},
        bool(info.get("is_action_valid", True)),
    )


def first_cause(error: BaseException) -> str:
    """The root of an exception chain and where it was raised: ``ValueError: bad map (lake.py:42 in reset)``."""
    root = error
    while (earlier := root.__cause__ or (None if root.__suppress_context__ else root.__context__)) is not None:
        root = earlier
    frames = traceback.extract_tb(root.__traceback__, limit=-1)
    where = f" ({frames[-1].filename.rpartition('/')[2]}:{frames[-1].lineno} in {frames[-1].name})" if frames else ""
    return f"{type(root).__name__}: {root}{where}"
