"""The control plane's end of one environment host: batched messages out, long polls in."""

from __future__ import annotations

from collections.abc import Callable

from rollart.control_plane.env_host import HostReport
from rollart.control_plane.outbox import Outbox
from rollart.runtime.runtime import WorkerHandle
from rollart.types import EpisodeSpec, GenerationResult, TrajectoryId

POLL_SECONDS = 5.0
"""A long poll returns after this long without news."""

CALL_SECONDS = 60.0
"""Deadline of a call that only queues messages."""


class HostClient:
    """One environment host; ``running`` counts the environments it holds, cancelled ones included."""

    def __init__(self, handle: WorkerHandle) -> None:
        self.handle = handle
        self.outbox = Outbox(3, self._post)
        self.running = 0

    @property
    def name(self) -> str:
        return self.handle.info.worker

    def start(self, spec: EpisodeSpec) -> None:
        self.running += 1
        self.outbox.put(0, spec)

    def deliver(self, result: GenerationResult) -> None:
        self.outbox.put(1, result)

    def cancel(self, trajectory: TrajectoryId) -> None:
        self.outbox.put(2, trajectory)

    async def collect(self, receive: Callable[[HostClient, HostReport], None]) -> None:
        """Hand every report to ``receive`` until cancelled."""
        while True:
            report: HostReport = await self.handle.call("collect", POLL_SECONDS, timeout=POLL_SECONDS + CALL_SECONDS)
            receive(self, report)

    async def _post(
        self, specs: list[EpisodeSpec], results: list[GenerationResult], cancels: list[TrajectoryId]
    ) -> None:
        await self.handle.call("post", specs, results, cancels, timeout=CALL_SECONDS)
