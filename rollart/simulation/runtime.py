"""The runtime of virtual time: workers are objects on the one event loop, and a call is a call.

Nothing crosses a process border, so nothing is encoded: messages are immutable Structs in fresh lists, which is what
the codec's contract makes of them anyway. No call needs a deadline of its own: a modelled worker that never answers
leaves the loop without anything to do, which the virtual-time loop reports with the wait-for graph.
"""

from __future__ import annotations

from typing import Any

from rollart.runtime.runtime import Placement, Runtime, WorkerHandle, WorkerInfo, WorkerLost

HOST = "simulated"
"""Where every worker lives, as events have it."""


class SimulatedHandle(WorkerHandle):
    """The caller's end of one worker.

    Args:
        info: Where it pretends to be.
        worker: The object.
    """

    def __init__(self, info: WorkerInfo, worker: Any) -> None:
        self.info = info
        self.worker = worker
        self._lost = ""

    async def call(self, method: str, *args: Any, timeout: float) -> Any:
        if self._lost:
            raise WorkerLost(f"worker {self.info.worker} (role {self.info.role}) is gone: {self._lost}")
        result = getattr(self.worker, method)(*args)
        return await result if hasattr(result, "__await__") else result

    async def stop(self, grace: float) -> None:
        if not self._lost:
            await self.worker.stop()
        self._lost = self._lost or "it has been stopped"

    async def kill(self) -> None:
        self._lost = self._lost or "it has been killed"


class SimulatedRuntime(Runtime):
    """See the module docstring."""

    def __init__(self) -> None:
        self._handles: list[SimulatedHandle] = []

    async def spawn(
        self, worker_class: type, placement: Placement, args: tuple[Any, ...], deadline: float
    ) -> SimulatedHandle:
        info = WorkerInfo(placement.worker, placement.role, placement.pool, placement.hardware_class, HOST, 0)
        handle = SimulatedHandle(info, worker_class(*args))
        self._handles.append(handle)
        return handle

    async def stop(self) -> None:
        handles, self._handles = self._handles, []
        for handle in handles:
            await handle.stop(0.0)
