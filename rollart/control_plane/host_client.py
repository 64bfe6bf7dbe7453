"""The control plane's end of one environment host: batched messages out, long polls in."""

from __future__ import annotations

from collections.abc import Callable

from rollart.control_plane.env_host import HostReport
from rollart.control_plane.outbox import Outbox
from rollart.control_plane.supervision import supervised
from rollart.runtime.runtime import CallTimeout, WorkerHandle, WorkerLost
from rollart.types import EpisodeSpec, GenerationResult, TrajectoryId

POLL_SECONDS = 30.0
"""A long poll returns after this long without news."""

CALL_SECONDS = 60.0
"""Deadline of a call that only queues messages; a host that takes longer is stuck and counts as lost."""

Receive = Callable[["HostClient", HostReport], None]


class HostClient:
    """One environment host over all its restarts.

    Attributes:
        handle: Its present process.
        running: Environments it holds, cancelled ones included.
        up: Whether it takes episodes; False from a loss until the restart.
    """

    def __init__(self, handle: WorkerHandle) -> None:
        self.handle = handle
        self.running = 0
        self.up = True
        self._outbox = Outbox(4, self._post)

    @property
    def name(self) -> str:
        return self.handle.info.worker

    def start(self, spec: EpisodeSpec) -> None:
        self.running += 1
        self._outbox.put(0, spec)

    def deliver(self, result: GenerationResult) -> None:
        self._outbox.put(1, result)

    def cancel(self, trajectory: TrajectoryId) -> None:
        self._outbox.put(2, trajectory)

    def permit(self, trajectory: TrajectoryId) -> None:
        """Let a played episode be scored."""
        self._outbox.put(3, trajectory)

    async def serve(self, receive: Receive) -> str:
        """Exchange messages, every report to ``receive``, until the host is lost; returns why it is.

        Afterwards its process is gone and ``receive`` gets nothing of it any more.

        Raises:
            WorkerError: a method of the host raised.
        """
        try:
            await supervised(self._collect(receive), [(f"{self.name}-outbox", self._outbox.run)])
        except (WorkerLost, CallTimeout) as error:
            self.up = False
            await self.handle.kill()
            return str(error)
        raise RuntimeError(f"{self.name} is served no more, but is not lost")

    def restarted(self, handle: WorkerHandle) -> None:
        """Go on with a new process; what was on its way to the lost one is dropped."""
        self.handle = handle
        self._outbox = Outbox(4, self._post)
        self.up = True

    async def _collect(self, receive: Receive) -> None:
        while True:
            report: HostReport = await self.handle.call("collect", POLL_SECONDS, timeout=POLL_SECONDS + CALL_SECONDS)
            receive(self, report)

    async def _post(
        self,
        specs: list[EpisodeSpec],
        results: list[GenerationResult],
        cancels: list[TrajectoryId],
        permits: list[TrajectoryId],
    ) -> None:
        await self.handle.call("post", specs, results, cancels, permits, timeout=CALL_SECONDS)
