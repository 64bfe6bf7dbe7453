"""Keeps one environment host alive: what ran on a lost one is failed, and the host is started again.

The other hosts go on meanwhile. A host is lost when its process is gone, or when it does not answer within the
deadline of a call, in which case it is ended for certain first. Between a loss and the restart nobody
listens to the old process, so nothing that it said late can be taken for news.

Who calls it: the Job's supervision, one loop for each host.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from rollart.control_plane.host_client import HostClient
from rollart.control_plane.restart_budget import RestartBudget
from rollart.control_plane.rollout_scheduler import RolloutScheduler
from rollart.events import Alarm, EventSink, WorkerRestarted
from rollart.runtime.runtime import CallTimeout, PlacementError, WorkerError, WorkerHandle, WorkerLost


class HostSupervisor:
    """See the module docstring.

    Args:
        host: The host, which is up.
        scheduler: Gets the host's reports, losses and returns.
        start_again: Places a new worker where the lost one was.
        restarts: How often it may.
        sink: Where losses and restarts are recorded.
    """

    def __init__(
        self,
        host: HostClient,
        scheduler: RolloutScheduler,
        start_again: Callable[[], Awaitable[WorkerHandle]],
        restarts: int,
        sink: EventSink,
    ) -> None:
        self._host = host
        self._scheduler = scheduler
        self._start_again = start_again
        self._budget = RestartBudget(host.name, restarts, "rollout.host_restarts")
        self._sink = sink

    async def run(self) -> None:
        """Serve the host until cancelled.

        Raises:
            WorkerLost: it was lost more often than it may be started again.
            WorkerError: a method of the host raised, which is no loss but a fault.
        """
        while True:
            cause = await self._host.serve(self._scheduler.receive)
            self._scheduler.host_lost(self._host, cause)
            await self._restart(cause)

    async def _restart(self, cause: str) -> None:
        began = asyncio.get_running_loop().time()
        while True:
            number = self._budget.lost(cause)
            self._sink.emit(Alarm(self._host.name, f"is lost and is started again: {cause}"))
            try:
                handle = await self._start_again()
                break
            except (PlacementError, WorkerError, WorkerLost, CallTimeout) as error:
                cause = str(error)
        self._host.restarted(handle)
        info, seconds = handle.info, asyncio.get_running_loop().time() - began
        self._sink.emit(WorkerRestarted(info.worker, info.role, info.pool, info.host, number, cause, seconds))
        self._scheduler.host_back()
