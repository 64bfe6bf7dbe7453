"""The resource manager: a live view of the pools in the metadata store, and workers bound to them.

The decision is :func:`rollart.resource_plane.binding.bind`, pure; this shell reads the pools, decides, and
claims the devices one by one with compare-and-set. If another manager was faster at one of them, it gives
back what it claimed and decides anew, so several jobs can share pools through one store and no device is
ever held twice. Claims stand under the job's lease, so that a dead job's devices come back by themselves.

Records of the store: ``pools/<pool>`` is a pool without holders, ``devices/<pool>/<id>`` the holder of a
device, ``bindings/<job>/<worker>`` where a worker went (for dispatch, failover and display).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import msgspec

from rollart.codec import decode, encode
from rollart.events import EventSink, Fallback
from rollart.resource_plane.binding import Binding, WorkerRequest, bind
from rollart.resource_plane.metadata_store import ABSENT, MetadataStore
from rollart.resource_plane.pools import PlanError, PoolView
from rollart.runtime.runtime import GPU, Placement, pool_resource

LEASE_SECONDS = 60.0
"""A job that sharing managers heard nothing of for this long is dead, and its devices are free again."""

ATTEMPTS = 32
"""Times a bind decides anew because another manager took a device meanwhile."""

_POOLS = "pools/"
_DEVICES = "devices/"
_BINDINGS = "bindings/"


class ResourceManager:
    """Binds one job's workers.

    Args:
        store: The metadata store, shared by all jobs that share the pools.
        job: Name of the job, unique in the store.
        sink: Where fallbacks are recorded.
        lease_seconds: After this long without :meth:`hold` the job counts as dead; None for a store that no
            other job shares.
    """

    def __init__(
        self, store: MetadataStore, job: str, sink: EventSink, lease_seconds: float | None = LEASE_SECONDS
    ) -> None:
        if "/" in job:
            raise ValueError(f"a job's name is part of keys and has no '/': {job!r}")
        self._store = store
        self._job = job
        self._sink = sink
        self._lease_seconds = lease_seconds
        self._lease: int | None = None
        self._declared: set[str] = set()

    async def declare(self, pools: Mapping[str, PoolView]) -> None:
        """Make pools known; one that is known already must be the same, unless nobody holds a device of it.

        Raises:
            PlanError: a running job declared a pool of this name differently.
        """
        self._declared.update(pools)
        for name, pool in pools.items():
            record = encode(msgspec.structs.replace(pool, holders={}))
            if await self._store.compare_and_set(_POOLS + name, record, ABSENT) is not None:
                continue
            known = await self._store.get(_POOLS + name)
            if known is not None and known.value != record:
                unused = not await self._store.list(f"{_DEVICES}{name}/")
                if unused and await self._store.compare_and_set(_POOLS + name, record, known.version) is not None:
                    continue
                other: PoolView = decode(known.value, PoolView)
                raise PlanError(
                    f"pools.{name}: {pool.devices} x {pool.hardware_class}, but a running job shares a pool of that "
                    f"name with {other.devices} x {other.hardware_class}: make them equal, or rename this one"
                )

    async def view(self) -> dict[str, PoolView]:
        """The pools as they are now; holders are named ``job/worker``."""
        pools: dict[str, PoolView] = {
            key.removeprefix(_POOLS): decode(entry.value, PoolView)
            for key, entry in (await self._store.list(_POOLS)).items()
        }
        holders: dict[str, dict[int, str]] = {name: {} for name in pools}
        for key, entry in (await self._store.list(_DEVICES)).items():
            pool, _, device = key.removeprefix(_DEVICES).rpartition("/")
            holders[pool][int(device)] = decode(entry.value, str)
        return {name: msgspec.structs.replace(pool, holders=holders[name]) for name, pool in pools.items()}

    async def bindings(self) -> dict[str, Binding]:
        """This job's bindings by worker."""
        prefix = f"{_BINDINGS}{self._job}/"
        entries = await self._store.list(prefix)
        return {key.removeprefix(prefix): decode(entry.value, Binding) for key, entry in entries.items()}

    async def bind(self, requests: Sequence[WorkerRequest]) -> list[Placement]:
        """Bind workers to devices of declared pools, all or none; what took another place than asked for is an event.

        A worker that the job has bound already keeps its place. So a run binds all its workers together first,
        which lets the decision see them all, and each Cluster finds its own bound.

        Returns:
            The placements in the order of ``requests``.

        Raises:
            PlanError: see :func:`~rollart.resource_plane.binding.bind`.
            LeaseExpired: this job counts as dead, because it did not :meth:`hold` in time.
        """
        for _ in range(ATTEMPTS):
            pools = {name: pool for name, pool in (await self.view()).items() if name in self._declared}
            bindings = await self.bindings()
            new, _after = bind(pools, [request for request in requests if request.worker not in bindings])
            if await self._claim(new):
                self._report_fallbacks(new)
                bindings |= {binding.worker: binding for binding in new}
                bound = (bindings[request.worker] for request in requests)
                return [_placement(binding, pools[binding.pool]) for binding in bound]
        raise PlanError(f"other jobs changed the pools {ATTEMPTS} times while workers of {self._job} were bound: retry")

    def _report_fallbacks(self, bindings: Sequence[Binding]) -> None:
        for each in bindings:
            if each.fallback:
                subject = f"{each.role}:{each.worker}"
                self._sink.emit(Fallback(subject, each.wanted, each.hardware_class, each.fallback))

    async def _claim(self, bindings: Sequence[Binding]) -> bool:
        """Claim the devices of all bindings, or none of them."""
        if self._lease is None and self._lease_seconds is not None:
            self._lease = await self._store.grant(self._lease_seconds)
        claimed: list[str] = []
        for binding in bindings:
            for device in binding.devices:
                key = f"{_DEVICES}{binding.pool}/{device}"
                holder = encode(f"{self._job}/{binding.worker}")
                if await self._store.compare_and_set(key, holder, ABSENT, self._lease) is None:
                    for other in claimed:
                        await self._store.delete(other)
                    return False
                claimed.append(key)
        for binding in bindings:
            await self._store.put(self._binding_key(binding.worker), encode(binding), self._lease)
        return True

    async def release(self, worker: str) -> None:
        """Give back a worker's devices. A worker that holds none is ignored."""
        key = self._binding_key(worker)
        entry = await self._store.get(key)
        if entry is None:
            return
        binding: Binding = decode(entry.value, Binding)
        for device in binding.devices:
            place = f"{_DEVICES}{binding.pool}/{device}"
            claim = await self._store.get(place)
            if claim is not None and claim.value == encode(f"{self._job}/{worker}"):
                await self._store.delete(place, claim.version)
        await self._store.delete(key)

    async def release_all(self) -> None:
        """Give back everything the job holds."""
        for worker in await self.bindings():
            await self.release(worker)
        if self._lease is not None:
            await self._store.revoke(self._lease)
            self._lease = None

    async def hold(self) -> None:
        """Keep the job's claims alive until cancelled; run it in the background where jobs share a store.

        Raises:
            LeaseExpired: it came too late, and the devices may be held by others.
        """
        while True:
            if self._lease is not None:
                await self._store.keep_alive(self._lease)
            await asyncio.sleep((self._lease_seconds or LEASE_SECONDS) / 3)

    def _binding_key(self, worker: str) -> str:
        return f"{_BINDINGS}{self._job}/{worker}"


def _placement(binding: Binding, pool: PoolView) -> Placement:
    count = float(len(binding.devices))
    resources = {pool_resource(binding.pool): count}
    if not pool.logical and pool.hardware.is_gpu:
        resources[GPU] = count
    return Placement(binding.worker, binding.role, binding.pool, binding.hardware_class, resources)
