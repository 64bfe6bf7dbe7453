"""The runtime of tests, debugging and virtual time: workers live on the caller's event loop.

Values cross by the codec all the same, so nothing is shared and what works here works on Ray. No thread is
started. There is one process, hence ``placement.resources`` and ``placement.environment`` have no effect,
and a synchronous method holds up everything.
"""

from __future__ import annotations

import asyncio
import os
import socket
from typing import Any

from rollart.runtime.handle import MAX_CALLS, EncodingHandle, describe, result_of
from rollart.runtime.host import WorkerHost
from rollart.runtime.methods import MethodTable, method_table
from rollart.runtime.runtime import Placement, PlacementError, Runtime, WorkerHandle, WorkerInfo, WorkerLost

STOP_GRACE = 5.0
"""Seconds that :meth:`InProcessRuntime.stop` gives each worker's own ``stop``."""


class InProcessHandle(EncodingHandle):
    """Calls a :class:`WorkerHost` on the same loop, each method in a task of its own."""

    def __init__(self, info: WorkerInfo, table: MethodTable, max_calls: int, host: WorkerHost) -> None:
        super().__init__(info, table, max_calls)
        self._host = host
        self._replies: set[asyncio.Future[bytes]] = set()
        self._tasks: set[asyncio.Task[bytes]] = set()

    async def _send(self, call: int, method: str, payload: bytes) -> bytes:
        loop = asyncio.get_running_loop()
        # The caller waits for a future of its own: it can give up although the method ignores its cancellation.
        reply: asyncio.Future[bytes] = loop.create_future()
        task = loop.create_task(self._host.invoke(call, method, payload))
        self._replies.add(reply)
        self._tasks.add(task)

        def settle(done: asyncio.Task[bytes]) -> None:
            self._tasks.discard(done)
            if reply.done():
                return
            if done.cancelled():
                reply.cancel()
            elif (error := done.exception()) is not None:
                reply.set_exception(error)
            else:
                reply.set_result(done.result())

        task.add_done_callback(settle)
        try:
            return await reply
        finally:
            self._replies.discard(reply)

    def _cancel(self, call: int) -> None:
        self._host.cancel(call)

    async def _end(self) -> None:
        for reply in self._replies:
            if not reply.done():
                reply.set_exception(WorkerLost(f"{describe(self.info)} is gone: {self._lost}"))
        self._host.cancel_all()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=STOP_GRACE)


class InProcessRuntime(Runtime):
    """See the module docstring.

    Args:
        max_calls: Bound on the calls in flight at one worker.
    """

    def __init__(self, max_calls: int = MAX_CALLS) -> None:
        self._max_calls = max_calls
        self._handles: dict[str, InProcessHandle] = {}
        self._stopped = False

    async def spawn(
        self, worker_class: type, placement: Placement, args: tuple[Any, ...], deadline: float
    ) -> WorkerHandle:
        if self._stopped:
            raise PlacementError(f"{placement.worker} cannot be placed: the runtime has been stopped")
        table = method_table(worker_class)
        payload = table.encode_constructor(args)
        info = WorkerInfo(
            placement.worker,
            placement.role,
            placement.pool,
            placement.hardware_class,
            socket.gethostname(),
            os.getpid(),
        )
        host = WorkerHost(worker_class, table)
        result_of(info, "__init__", host.create(payload))
        handle = InProcessHandle(info, table, self._max_calls, host)
        self._handles[placement.worker] = handle
        return handle

    async def stop(self) -> None:
        self._stopped = True
        handles, self._handles = list(self._handles.values()), {}
        await asyncio.gather(*(handle.stop(STOP_GRACE) for handle in handles))
