"""The worker's end of a call: bytes in, bytes out. Both runtimes run workers through this one class.

A host never raises for what a worker does: a failure of the constructor or of a method, ``SystemExit``
included, is a reply with its first cause, so that user code cannot take the process with it. A method runs
on the event loop that calls :meth:`WorkerHost.invoke`; a synchronous one must not block (it holds up every
other call) and uses ``rollart.runtime.offload`` from an ``async`` method instead.
"""

from __future__ import annotations

import asyncio
import inspect
import traceback
from collections import OrderedDict
from typing import Any

import msgspec

from rollart.codec import decode, encode
from rollart.runtime.methods import MethodTable
from rollart.runtime.runtime import WorkerError

_RESULT = b"\x00"
_FAILURE = b"\x01"
_EARLY_CANCELS = 1024
"""Cancellations remembered for calls that have not arrived; a late one is older than this many others."""


class Failure(msgspec.Struct, frozen=True, array_like=True):
    """The first cause of a failed call, as it crosses: class name, message, where it happened."""

    cause_type: str
    cause: str
    remote_traceback: str


def read_reply(reply: bytes | memoryview) -> memoryview | Failure:
    """Either the encoded result or the failure that a reply holds."""
    view = memoryview(reply)
    return decode(view[1:], Failure) if view[:1] == _FAILURE else view[1:]


class WorkerHost:
    """Holds one worker and runs its methods."""

    def __init__(self, worker_class: type, table: MethodTable) -> None:
        self._class = worker_class
        self._table = table
        self._worker: Any = None
        self._running: dict[int, asyncio.Task[Any]] = {}
        self._cancelled_early: OrderedDict[int, None] = OrderedDict()

    def create(self, payload: bytes | memoryview) -> bytes:
        """Run the constructor. The reply's result is ``None``."""
        try:
            self._worker = self._table.construct(self._class, payload)
            return _RESULT + encode(None)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - user code ends here; the caller gets its cause
            return failure_reply(error)

    async def invoke(self, call: int, method: str, payload: bytes | memoryview) -> bytes:
        """Run one method; ``call`` names it for :meth:`cancel`."""
        task = asyncio.current_task()
        assert task is not None
        if self._cancelled_early.pop(call, 0) is None:
            return failure_reply(asyncio.CancelledError("cancelled before it began"))
        self._running[call] = task
        try:
            bound = self._table.method(method)
            result = bound.apply(getattr(self._worker, method), payload)
            if inspect.isawaitable(result):
                result = await result
            return _RESULT + bound.encode_result(result)
        except (Exception, SystemExit, asyncio.CancelledError) as error:  # noqa: BLE001 - as in create
            return failure_reply(error)
        finally:
            del self._running[call]

    def cancel(self, call: int) -> None:
        """Raise ``CancelledError`` inside a running method; a call that has not arrived never begins."""
        task = self._running.get(call)
        if task is not None:
            task.cancel()
            return
        self._cancelled_early[call] = None
        if len(self._cancelled_early) > _EARLY_CANCELS:
            self._cancelled_early.popitem(last=False)

    def cancel_all(self) -> None:
        """Cancel every running method."""
        for task in self._running.values():
            task.cancel()


def failure_reply(error: BaseException) -> bytes:
    """The reply that says what went wrong first."""
    cause = error
    while isinstance(cause, BaseExceptionGroup):  # a TaskGroup's wrapper tells the user nothing
        cause = cause.exceptions[0]
    name, message = type(cause).__name__, str(cause)
    if isinstance(cause, WorkerError):  # a worker that called another: name the other's cause and place
        name, message = cause.cause_type, f"{cause.cause} (in {cause.info.worker}.{cause.method})"
    return _FAILURE + encode(Failure(name, message, "".join(traceback.format_exception(error))))
