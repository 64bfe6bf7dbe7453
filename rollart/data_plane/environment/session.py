"""One episode in one environment, as the EnvManager holds it: reset, step, close, each with a deadline.

Two implementations keep one contract:

* ``inline`` (:class:`InlineSession`): the environment lives on this event loop. No thread, no process, so
  it also runs in virtual time. A deadline can end an async environment; a sync one that blocks, blocks
  the loop.
* ``process`` (:mod:`rollart.data_plane.environment.process`): the environment lives in a child process,
  one episode in it at a time. One that hangs or crashes is killed and its siblings never notice.

Contract: ``reset`` once, then ``step`` until terminated or truncated, then ``close`` exactly when the episode
is over, whatever happened. Everything that goes wrong in the environment is an :class:`EnvironmentFailure`
with its kind and first cause. Cancelling a call ends the environment; ``close`` still has to be called.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from rollart.config.domains import DomainConfig
from rollart.data_plane.environment.calls import (
    checked_observation,
    checked_step,
    lacks_random_policy,
    method_of,
    problem,
)
from rollart.data_plane.environment.env import Observation, StepResult
from rollart.data_plane.environment.registry import default_isolation, make_env
from rollart.registry import first_cause
from rollart.types import FailureKind, Purpose

if TYPE_CHECKING:
    from rollart.data_plane.environment.process import ProcessPool

logger = logging.getLogger(__name__)

CLOSE_SECONDS = 10.0
"""An environment that takes longer to close is left alone (inline) or killed (process)."""


class EnvironmentFailure(RuntimeError):
    """The environment failed, not the policy: the episode ends as ``failed(kind)`` and has no reward.

    Attributes:
        kind: ``reset_error``, ``reset_timeout``, ``step_error``, ``step_timeout``, ``environment_crash`` or
            ``no_random_policy``.
    """

    def __init__(self, kind: FailureKind, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class EnvSession(ABC):
    """See the module docstring for the contract."""

    @abstractmethod
    async def reset(self, seed: int, task: int) -> Observation:
        """Make the environment and start instance ``task``.

        Raises:
            EnvironmentFailure: it raised, hung, crashed, or returned no observation.
        """

    @abstractmethod
    async def step(self, action: str) -> StepResult:
        """Act. Of ``info`` only ``success``, ``metrics`` and ``is_action_valid`` come back, if they were given.

        Raises:
            EnvironmentFailure: it raised, hung, crashed, or returned something else than five valid values.
        """

    @abstractmethod
    async def random_action(self, seed: int) -> str:
        """A random valid action.

        Raises:
            EnvironmentFailure: the environment declares no random policy (``no_random_policy``), or as for ``step``.
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
        return cast(Observation, await self._call("reset", checked_observation, seed, task))

    async def step(self, action: str) -> StepResult:
        return cast(StepResult, await self._call("step", checked_step, action))

    async def random_action(self, seed: int) -> str:
        return cast(str, await self._call("random_action", str, seed))

    async def close(self) -> None:
        env, self._env = self._env, None
        try:
            closing = env.close() if hasattr(env, "close") else None
            if inspect.isawaitable(closing):
                async with asyncio.timeout(CLOSE_SECONDS):
                    await closing
        except (Exception, SystemExit) as error:  # noqa: BLE001 - the episode is decided; this is only made known
            logger.warning("environment '%s' did not close: %s", self._config.env, first_cause(error))

    async def _call(self, method: str, check: Callable[[Any], Any], *args: Any) -> Any:
        deadline: asyncio.Timeout | None = None
        try:
            if self._env is None:
                if method != "reset":
                    raise RuntimeError(f"there is no environment: {method} before reset or after close")
                self._env = make_env(self._config.env, self._config.args, self._purpose, self._episode)
            result = method_of(self._env, method)(*args)
            if inspect.isawaitable(result):
                async with asyncio.timeout(seconds_for(self._config, method)) as deadline:
                    result = await result
            return check(result)
        except (Exception, SystemExit) as error:
            if isinstance(error, TimeoutError) and deadline is not None and deadline.expired():
                raise timed_out(self._config, method) from error
            if lacks_random_policy(method, error):
                raise no_random_policy(self._config, str(error)) from error
            raise failed(self._config, method, problem(method, error)) from error


def failed(config: DomainConfig, method: str, what: str) -> EnvironmentFailure:
    """The failure of a method that raised, or returned what it may not return."""
    kind = FailureKind.RESET_ERROR if method == "reset" else FailureKind.STEP_ERROR
    return EnvironmentFailure(kind, f"{config.env}: {what}")


def no_random_policy(config: DomainConfig, what: str) -> EnvironmentFailure:
    """The failure of ``random_action`` in an environment without one."""
    return EnvironmentFailure(
        FailureKind.NO_RANDOM_POLICY, f"{config.env}: {what}: give the environment a method random_action(seed)"
    )


def timed_out(config: DomainConfig, method: str, details: str = "") -> EnvironmentFailure:
    """The failure of a method that passed its deadline."""
    kind = FailureKind.RESET_TIMEOUT if method == "reset" else FailureKind.STEP_TIMEOUT
    seconds = seconds_for(config, method)
    return EnvironmentFailure(kind, f"{config.env}: {method} did not return within {seconds:g} s{details}")


def seconds_for(config: DomainConfig, method: str) -> float:
    """The deadline of a method."""
    return config.reset_timeout if method == "reset" else config.step_timeout
