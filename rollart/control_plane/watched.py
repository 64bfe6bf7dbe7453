"""Workers whose calls are in the register of waits, so that one that hangs is named: worker, method, deadline.

Who calls it: whoever holds a run's workers and a register, before anything is called.
"""

from __future__ import annotations

from typing import Any

import msgspec

from rollart.control_plane.waits import Waits
from rollart.control_plane.wiring import JobWorkers
from rollart.runtime.runtime import WorkerHandle


class WatchedHandle(WorkerHandle):
    """A handle that registers each call while it lasts."""

    def __init__(self, handle: WorkerHandle, waits: Waits) -> None:
        self.info = handle.info
        self._handle = handle
        self._waits = waits

    async def call(self, method: str, *args: Any, timeout: float) -> Any:
        info = self.info
        key = self._waits.begin(
            "the driver",
            lambda: (
                f"{info.worker}.{method} (role {info.role}, pool {info.pool}, host {info.host}, pid {info.pid}; "
                f"gives up after {timeout:g} s)"
            ),
        )
        try:
            return await self._handle.call(method, *args, timeout=timeout)
        finally:
            self._waits.end(key)

    async def stop(self, grace: float) -> None:
        await self._handle.stop(grace)

    async def kill(self) -> None:
        await self._handle.kill()


def watched(workers: JobWorkers, waits: Waits) -> JobWorkers:
    """The workers with every call in the register, those of restarted hosts included."""

    async def restart_host(index: int) -> WorkerHandle:
        return WatchedHandle(await workers.restart_host(index), waits)

    return msgspec.structs.replace(
        workers,
        trainer=WatchedHandle(workers.trainer, waits),
        engines=[WatchedHandle(handle, waits) for handle in workers.engines],
        hosts=[WatchedHandle(handle, waits) for handle in workers.hosts],
        restart_host=restart_host,
    )
