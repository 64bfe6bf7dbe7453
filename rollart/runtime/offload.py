"""Blocking work off the event loop: the only way that code above this package uses a thread.

Threads are daemons, reused, and at most :data:`MAX_THREADS`; further calls queue. Daemons, because the
interpreter and ``asyncio.run`` wait without a limit for the threads of asyncio's own executor: one call
that hangs would keep a finished run from exiting. On a virtual-time loop (its attribute
``offload_inline`` is true) the work runs inline, since a thread's duration means nothing there.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import queue
import threading
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, cast

P = ParamSpec("P")
T = TypeVar("T")

MAX_THREADS = 64
"""Blocking calls that run at once in one process; most wait for a disk, a socket or a device."""


async def offload(fn: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Await ``fn(*args, **kwargs)`` run in a thread, with the caller's context variables.

    A cancelled caller stops waiting; the thread finishes its work and the result is dropped.

    Raises:
        Exception: whatever ``fn`` raises.
    """
    loop = asyncio.get_running_loop()
    if getattr(loop, "offload_inline", False):
        return fn(*args, **kwargs)
    context = contextvars.copy_context()
    answer: asyncio.Future[T] = loop.create_future()
    _threads.put(_Job(loop, cast("asyncio.Future[Any]", answer), lambda: context.run(fn, *args, **kwargs)))
    return await answer


class _Job:
    """One blocking call and the future that waits for it."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, answer: asyncio.Future[Any], work: Callable[[], object]
    ) -> None:
        self._loop = loop
        self._answer = answer
        self._work = work

    def run(self) -> None:
        try:
            result, error = self._work(), None
        except BaseException as raised:  # noqa: BLE001 - handed to the awaiting task, which raises it
            result, error = None, raised
        with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile: nobody waits any more
            self._loop.call_soon_threadsafe(self._settle, result, error)

    def _settle(self, result: object, error: BaseException | None) -> None:
        if self._answer.done():
            return
        if error is None:
            self._answer.set_result(result)
        elif isinstance(error, StopIteration):  # a future refuses it
            self._answer.set_exception(RuntimeError(f"StopIteration: {error}"))
        else:
            self._answer.set_exception(error)


class _Threads:
    """Daemon threads that take jobs from one queue; a thread is added when none is idle."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._jobs: queue.SimpleQueue[_Job] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._free = 0  # idle threads minus queued jobs
        self._count = 0

    def put(self, job: _Job) -> None:
        with self._lock:
            self._free -= 1
            start = self._free < 0 and self._count < self._limit
            if start:
                self._count += 1
                self._free += 1
        self._jobs.put(job)
        if start:
            threading.Thread(target=self._serve, name=f"offload-{self._count}", daemon=True).start()

    def _serve(self) -> None:
        while True:
            self._jobs.get().run()
            with self._lock:
                self._free += 1


_threads = _Threads(MAX_THREADS)
