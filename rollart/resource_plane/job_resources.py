"""The resource manager of one run, for as long as the run lasts.

A run that has its pools to itself keeps their view in its own memory. Runs that share a cluster share the
view too: its metadata store is a detached worker of the cluster, which the first of them creates and all
find by its name. There the run's claims stand under a lease that is kept alive here, and end with the run:
at once when it ends in order, after the lease when its driver dies.

Who calls it: whoever starts a run, around everything that is placed.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

from rollart.events import Alarm, EventSink
from rollart.resource_plane.metadata_store import HostedStore, LeaseExpired, MemoryStore
from rollart.resource_plane.resource_manager import ResourceManager
from rollart.runtime.runtime import CallTimeout, Placement, WorkerError, WorkerHandle, WorkerLost

STORE_PLACE = Placement("metadata-store", "metadata", "", "")
"""The store's name in the cluster. It takes no device, so Ray puts it on any node."""

_STORE_ERRORS = (LeaseExpired, WorkerError, WorkerLost, CallTimeout)

Attach = Callable[[type, Placement, tuple[()], float], Awaitable[WorkerHandle]]
"""As :meth:`rollart.runtime.ray.RayRuntime.attach`."""


@contextlib.asynccontextmanager
async def job_resources(
    job: str, sink: EventSink, attach: Attach | None = None, deadline: float = 60.0
) -> AsyncIterator[ResourceManager]:
    """The resource manager of run ``job``; on leaving, what the run holds is given back.

    Args:
        job: Name of the run, unique among those that share the cluster.
        sink: Where fallbacks are recorded, and an alarm if the shared store is lost.
        attach: Finds or creates a detached worker of the cluster; ``None`` if no other run shares the pools.
        deadline: Seconds that placing the shared store may take.

    Raises:
        PlacementError: the shared store cannot be placed.
    """
    if attach is None:
        yield ResourceManager(MemoryStore(), job, sink, lease_seconds=None)
        return
    handle = await attach(MemoryStore, STORE_PLACE, (), deadline)
    manager = ResourceManager(HostedStore(handle), job, sink)
    holding = asyncio.ensure_future(_hold(manager, sink))
    try:
        yield manager
    finally:
        holding.cancel()
        await asyncio.gather(holding, return_exceptions=True)
        with contextlib.suppress(*_STORE_ERRORS):  # the lease ends by itself
            await manager.release_all()


async def _hold(manager: ResourceManager, sink: EventSink) -> None:
    """Keep the claims alive. Losing them ends no run: the cluster itself gives no device to two workers."""
    try:
        await manager.hold()
    except _STORE_ERRORS as error:
        sink.emit(Alarm("resources", f"other runs no longer see what this one holds of the pools: {error}"))
