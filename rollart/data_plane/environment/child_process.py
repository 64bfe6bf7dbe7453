"""The parent's end of one environment process: start it, ask it, see it die.

A thin layer over asyncio's subprocess protocol. It parses frames, keeps the last lines that the child
printed, and turns every way to lose a child into :class:`ChildCrash`. Used by
:mod:`rollart.data_plane.environment.process` only.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Callable
from typing import TypeVar, cast

import msgspec

from rollart import codec
from rollart.data_plane.environment.messages import (
    HEADER,
    MAX_FRAME,
    Action,
    Closed,
    Failed,
    Request,
    Started,
    Stepped,
    frame,
)

A = TypeVar("A", Started, Stepped, Action, Closed)

_OUTPUT_BYTES = 4096
_OUTPUT_LINES = 8
"""How much of the child's last output a message shows."""

_DRAIN_SECONDS = 0.2
"""How long a dead child's last output is waited for; its own children may hold the pipe open for ever."""


class ChildCrash(RuntimeError):
    """The child is gone or talks nonsense; the message says how it ended."""


class ChildProcess(asyncio.SubprocessProtocol):
    """One child.

    Attributes:
        key: What it serves, for reuse.
        pid: Its process id, which is also its process group.
    """

    def __init__(self, key: bytes, on_exit: Callable[[ChildProcess], None]) -> None:
        self.key = key
        self.pid = 0
        self._on_exit = on_exit
        self._killed = False
        self._crash: ChildCrash | None = None
        self._transport: asyncio.SubprocessTransport | None = None
        self._frames = bytearray()
        self._output = bytearray()
        self._answer: asyncio.Future[bytes] | None = None
        self._exited = asyncio.get_running_loop().create_future()
        self._drained = False

    @classmethod
    async def start(cls, key: bytes, on_exit: Callable[[ChildProcess], None]) -> ChildProcess:
        """Start a child; ``on_exit`` is called once when it has ended.

        Raises:
            OSError: the system has no process or memory left.
        """
        loop = asyncio.get_running_loop()
        # Hundreds of children must not start a pool of numerical threads each.
        environment = {"OMP_NUM_THREADS": "1", **os.environ}
        command = (sys.executable, "-m", "rollart.data_plane.environment.child", str(os.getpid()))
        _, child = await loop.subprocess_exec(
            lambda: cls(key, on_exit), *command, env=environment, start_new_session=True
        )
        return child

    @property
    def alive(self) -> bool:
        """Whether it can be asked."""
        return not (self._killed or self._exited.done() or self._crash)

    async def ask(self, request: Request, expected: type[A]) -> A | Failed:
        """Send one request and wait for its answer. One at a time; the caller sets the deadline.

        Raises:
            ChildCrash: the child ended or broke the protocol.
        """
        if self._crash is not None:
            raise self._crash
        assert self._transport is not None
        self._answer = asyncio.get_running_loop().create_future()
        try:
            cast(asyncio.WriteTransport, self._transport.get_pipe_transport(0)).write(frame(request))
            return codec.decode(await self._answer, expected | Failed)
        except msgspec.DecodeError as error:
            self.kill()
            raise ChildCrash(f"the process wrote into the pipe of its answers ({error})") from error
        finally:
            self._answer = None

    def kill(self) -> None:
        """End the child and all processes of its group. Idempotent; ``wait`` for the end."""
        if not self._killed and not self._exited.done():
            self._signal_group()
        self._killed = True

    async def wait(self, seconds: float) -> bool:
        """Whether the child has been reaped within that time."""
        done, _ = await asyncio.wait([self._exited], timeout=seconds)
        return bool(done)

    def last_output(self) -> str:
        """What it printed last, as the end of a message; empty if nothing."""
        text = self._output.decode(errors="replace")
        lines = [line for line in text.splitlines() if line.strip()][-_OUTPUT_LINES:]
        return "; its last output:\n  " + "\n  ".join(lines) if lines else ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.SubprocessTransport, transport)
        self.pid = self._transport.get_pid()

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        if fd == 2:
            self._output += data
            del self._output[:-_OUTPUT_BYTES]
            return
        self._frames += data
        if len(self._frames) < HEADER.size:
            return
        size = HEADER.unpack_from(self._frames)[0]
        if size > MAX_FRAME or self._answer is None:
            self._fail(ChildCrash("the process wrote into the pipe of its answers"))
        elif len(self._frames) >= HEADER.size + size:
            body = bytes(self._frames[HEADER.size : HEADER.size + size])
            del self._frames[: HEADER.size + size]
            if not self._answer.done():
                self._answer.set_result(body)

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        if fd == 2:
            self._drained = True
            if self._exited.done():
                self._finish()
        elif fd == 1:
            # It is ending, or it closed its descriptors; either way it cannot answer any more.
            self._signal_group()

    def process_exited(self) -> None:
        # What it left behind in its group (a browser, a server) ends with it.
        self._signal_group()
        self._exited.set_result(None)
        self._on_exit(self)
        if self._killed or self._drained:
            self._finish()
        else:
            asyncio.get_running_loop().call_later(_DRAIN_SECONDS, self._finish)

    def _finish(self) -> None:
        assert self._transport is not None
        code = self._transport.get_returncode() or 0
        how = f"signal {-code} ({signal.strsignal(-code)})" if code < 0 else f"exit code {code}"
        self._fail(ChildCrash(f"the process ended with {how}"))
        self._transport.close()

    def _fail(self, crash: ChildCrash) -> None:
        if self._crash is None:
            self._crash = crash
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(self._crash)

    def _signal_group(self) -> None:
        if self.pid:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)
