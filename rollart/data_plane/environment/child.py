"""Entry point of an environment's child process: ``python -m rollart.data_plane.environment.child PARENT``.

It serves one episode after the other, one at a time, over its standard input and output. Whatever the
environment itself prints goes to standard error, of which the parent keeps the last lines. The child dies
with its parent.

The environment is called on the main thread (some libraries need signals) and, if it is not async, outside
any event loop (some libraries refuse to run inside one). The tasks of an async environment go on between
its calls.
"""

from __future__ import annotations

import asyncio
import ctypes
import faulthandler
import inspect
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from rollart import codec
from rollart.data_plane.environment.calls import (
    InvalidReturn,
    checked_observation,
    checked_step,
    lacks_random_policy,
    method_of,
    problem,
)
from rollart.data_plane.environment.env import Observation
from rollart.data_plane.environment.messages import (
    HEADER,
    Action,
    Answer,
    Close,
    Closed,
    Failed,
    Random,
    Request,
    Reset,
    Started,
    Step,
    Stepped,
    TextObservation,
    frame,
)
from rollart.data_plane.environment.registry import make_env
from rollart.registry import first_cause
from rollart.types import LengthSpan

_SET_PARENT_DEATH_SIGNAL = 1
_METHODS: dict[type, str] = {Reset: "reset", Step: "step", Random: "random_action", Close: "close"}


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when its parent ends (Linux; elsewhere the closed pipe ends it)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit(0)


class Pipe:
    """The child's end of the pipes, taken away from ``stdin`` and ``stdout`` before any user code runs."""

    def __init__(self) -> None:
        self._in = os.dup(0)
        self._out = os.dup(1)
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.close(null)
        os.dup2(2, 1)

    def read(self) -> Request | None:
        """The next request; ``None`` when the parent has closed the pipe."""
        header = self._read_exactly(HEADER.size)
        if header is None:
            return None
        body = self._read_exactly(HEADER.unpack(header)[0])
        return None if body is None else codec.decode(body, Request)

    def _read_exactly(self, size: int) -> bytes | None:
        parts = bytearray()
        while len(parts) < size:
            part = os.read(self._in, size - len(parts))
            if not part:
                return None
            parts += part
        return bytes(parts)

    def write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(self._out, view) :]


class Host:
    """Holds the live environment and answers requests."""

    def __init__(self, runner: asyncio.Runner) -> None:
        self._runner = runner
        self._env: Any = None
        self.has_loop = False
        """An async environment was seen: its loop runs also between requests."""

    def answer(self, request: Request) -> Answer:
        """Do what is asked; never raises for what the environment does."""
        if isinstance(request, Close):
            return self._close()
        try:
            return self._act(request)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - user code; the parent types and reports it
            method = _METHODS[type(request)]
            if lacks_random_policy(method, error):
                return Failed(str(error), no_random_policy=True)
            return Failed(problem(method, error))

    def _act(self, request: Reset | Step | Random) -> Answer:
        if isinstance(request, Reset):
            sys.path.extend(path for path in request.import_paths if path not in sys.path)
            self._env = make_env(request.env, request.args, request.purpose, request.episode)
            return Started(_text(checked_observation(self._call("reset", request.seed, request.task))))
        if isinstance(request, Random):
            return Action(str(self._call("random_action", request.seed)))
        observation, reward, terminated, truncated, info = checked_step(self._call("step", request.action))
        return Stepped(_text(observation), reward, terminated, truncated, info)

    def _close(self) -> Answer:
        env, self._env = self._env, None
        try:
            if hasattr(env, "close"):
                self._finish(env.close())
        except (Exception, SystemExit) as error:  # noqa: BLE001 - user code; the parent logs it
            return Closed(first_cause(error))
        return Closed()

    def _call(self, method: str, *args: Any) -> Any:
        return self._finish(method_of(self._env, method)(*args))

    def _finish(self, result: Any) -> Any:
        if not inspect.isawaitable(result):
            return result
        self.has_loop = True

        async def wait() -> Any:
            return await result

        return self._runner.run(wait())

    def wait_for(self, read: Callable[[], Request | None]) -> Request | None:
        """The next request; an async environment's loop runs meanwhile."""
        if not self.has_loop:
            return read()

        async def wait() -> Request | None:
            return await asyncio.get_running_loop().run_in_executor(None, read)

        return self._runner.run(wait())


def _text(observation: Observation) -> TextObservation:
    if isinstance(observation, LengthSpan):
        raise InvalidReturn("must give text or messages: lengths only exist inline")
    return observation


def serve(pipe: Pipe) -> None:
    """Answer requests until the parent closes the pipe."""
    with asyncio.Runner() as runner:
        host = Host(runner)
        while (request := host.wait_for(pipe.read)) is not None:
            answer = host.answer(request)
            try:
                data = frame(answer)
            except (TypeError, ValueError) as error:
                data = frame(Failed(f"{_METHODS[type(request)]}: {error}"))
            pipe.write(data)


def main() -> None:
    pipe = Pipe()
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    faulthandler.enable()
    die_with_parent(int(sys.argv[1]))
    serve(pipe)


if __name__ == "__main__":
    main()
