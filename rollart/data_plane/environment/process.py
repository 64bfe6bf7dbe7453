"""Environments in child processes: one live episode in one child, the children from a small reusable pool.

Invariants:

* never more than ``limit`` children exist, those that are dying included;
* a child serves one domain's environment (its imports are paid once) and one episode at a time;
* a child whose environment hung, crashed, raised or was cancelled is killed with its process group and
  replaced when the next episode needs one; so nothing of it reaches another episode;
* a child dies with this process, and ``close`` reaps every one.

Used through :func:`rollart.data_plane.environment.session.open_session`; the environment host owns one pool.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Iterator
from typing import TypeVar

from rollart import codec
from rollart.config.domains import DomainConfig
from rollart.data_plane.environment.child_process import ChildCrash, ChildProcess
from rollart.data_plane.environment.env import Observation, StepResult
from rollart.data_plane.environment.messages import (
    Action,
    Close,
    Closed,
    Failed,
    Random,
    Request,
    Reset,
    Started,
    Step,
    Stepped,
)
from rollart.data_plane.environment.session import (
    CLOSE_SECONDS,
    EnvironmentFailure,
    EnvSession,
    failed,
    no_random_policy,
    seconds_for,
    timed_out,
)
from rollart.types import FailureKind, Purpose

A = TypeVar("A", Started, Stepped, Action)

logger = logging.getLogger(__name__)

EXIT_SECONDS = 10.0
"""A killed process is gone in milliseconds; one that is not is stuck in the kernel."""


class ProcessPool:
    """At most ``limit`` environment processes of one event loop.

    Args:
        limit: Children alive at once, and so episodes running in processes at once; others wait.
        max_wait: Seconds that an episode waits for a free child before it fails as ``reset_timeout``.
    """

    def __init__(self, limit: int, max_wait: float = 600.0) -> None:
        if limit < 1:
            raise ValueError(f"a pool of {limit} processes runs nothing: give it 1 or more")
        self._limit = limit
        self._max_wait = max_wait
        self._leases = asyncio.Semaphore(limit)
        self._children: set[ChildProcess] = set()
        self._idle: list[ChildProcess] = []
        self._starting = 0
        self._closed = False

    @property
    def alive(self) -> int:
        """Children that exist now."""
        return len(self._children) + self._starting

    def session(self, config: DomainConfig, purpose: Purpose, episode: int) -> EnvSession:
        """A session whose environment will live in a child of this pool."""
        return ProcessSession(self, config, purpose, episode)

    async def acquire(self, key: bytes) -> ChildProcess:
        """An idle child that served ``key`` before, or a new one. Give it back with ``release``.

        Raises:
            EnvironmentFailure: none became free in time.
            RuntimeError: the pool is closed.
        """
        if self._closed:
            raise RuntimeError("the pool of environment processes is closed")
        try:
            async with asyncio.timeout(self._max_wait):
                await self._leases.acquire()
        except TimeoutError:
            raise EnvironmentFailure(
                FailureKind.RESET_TIMEOUT,
                f"no environment process became free within {self._max_wait:g} s, all {self._limit} are busy: "
                "allow more of them, or fewer environments at once",
            ) from None
        try:
            return self._take_idle(key) or await self._start(key)
        except BaseException:
            self._leases.release()
            raise

    def release(self, child: ChildProcess, *, reuse: bool) -> None:
        """End a lease. A child that may not be reused is killed."""
        if reuse and child.alive and not self._closed:
            self._idle.append(child)
        else:
            child.kill()
        self._leases.release()

    async def close(self) -> None:
        """Kill and reap all children. Idempotent."""
        self._closed = True
        self._idle.clear()
        for child in self._children:
            child.kill()
        for child in list(self._children):
            if not await child.wait(EXIT_SECONDS):
                logger.warning("environment process %d does not die", child.pid)

    def _take_idle(self, key: bytes) -> ChildProcess | None:
        for position in reversed(range(len(self._idle))):
            if self._idle[position].key == key and self._idle[position].alive:
                return self._idle.pop(position)
        return None

    async def _start(self, key: bytes) -> ChildProcess:
        while self.alive >= self._limit:
            leaving = next(self._leaving(), None) or self._idle.pop(0)
            leaving.kill()
            if not await leaving.wait(EXIT_SECONDS):
                raise EnvironmentFailure(
                    FailureKind.RESET_TIMEOUT,
                    f"environment process {leaving.pid} was killed {EXIT_SECONDS:g} s ago and still exists, so its "
                    f"place (1 of {self._limit}) is taken: it hangs in the kernel, look at what it accesses",
                )
        self._starting += 1
        try:
            child = await ChildProcess.start(key, self._gone)
        except OSError as error:
            message = f"cannot start an environment process: {error}"
            raise EnvironmentFailure(FailureKind.RESET_ERROR, message) from error
        finally:
            self._starting -= 1
        self._children.add(child)
        return child

    def _leaving(self) -> Iterator[ChildProcess]:
        return (child for child in self._children if not child.alive)

    def _gone(self, child: ChildProcess) -> None:
        self._children.discard(child)
        if child in self._idle:
            self._idle.remove(child)


class ProcessSession(EnvSession):
    """One episode in a child of the pool."""

    def __init__(self, pool: ProcessPool, config: DomainConfig, purpose: Purpose, episode: int) -> None:
        self._pool = pool
        self._config = config
        self._purpose = purpose
        self._episode = episode
        self._child: ChildProcess | None = None
        self._healthy = True

    async def reset(self, seed: int, task: int) -> Observation:
        if self._child is not None:
            raise RuntimeError("a session is one episode: open another one to reset again")
        config = self._config
        try:
            key = codec.encode((config.env, config.args))
        except TypeError as error:
            raise failed(config, "reset", f"its arguments: {error}") from error
        self._child = await self._pool.acquire(key)
        request = Reset(config.env, config.args, self._purpose, self._episode, seed, task, tuple(sys.path))
        return (await self._ask("reset", request, Started)).observation

    async def step(self, action: str) -> StepResult:
        answer = await self._ask("step", Step(action), Stepped)
        return answer.observation, answer.reward, answer.terminated, answer.truncated, answer.info

    async def random_action(self, seed: int) -> str:
        return (await self._ask("random_action", Random(seed), Action)).text

    async def close(self) -> None:
        child, self._child = self._child, None
        if child is None:
            return
        reuse = False
        try:
            if child.alive:
                reuse = await self._close_environment(child)
        finally:
            self._pool.release(child, reuse=reuse)

    async def _close_environment(self, child: ChildProcess) -> bool:
        """Whether the child may serve another episode."""
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                answer = await child.ask(Close(), Closed)
        except (ChildCrash, TimeoutError) as error:
            logger.warning("environment '%s' did not close: %s", self._config.env, error or "no answer in time")
            return False
        if not isinstance(answer, Failed) and answer.problem:
            logger.warning("environment '%s' did not close: %s", self._config.env, answer.problem)
            return False
        return self._healthy

    async def _ask(self, method: str, request: Request, expected: type[A]) -> A:
        child = self._child
        if child is None:
            raise failed(self._config, method, f"there is no environment: {method} before reset or after close")
        try:
            async with asyncio.timeout(seconds_for(self._config, method)):
                answer = await child.ask(request, expected)
        except TimeoutError:
            child.kill()
            raise timed_out(self._config, method, child.last_output()) from None
        except ChildCrash as crash:
            child.kill()
            message = f"{self._config.env}: {crash} in {method}{child.last_output()}"
            raise EnvironmentFailure(FailureKind.ENVIRONMENT_CRASH, message) from None
        except asyncio.CancelledError:
            child.kill()
            raise
        if isinstance(answer, Failed):
            if answer.no_random_policy:
                raise no_random_policy(self._config, answer.problem)
            self._healthy = False
            raise failed(self._config, method, answer.problem + child.last_output())
        return answer
