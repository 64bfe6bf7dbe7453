"""The runtime on Ray, the default: each worker is an actor process, each pool a custom resource.

Actors take ``num_cpus=0`` and what their placement asks for, so logical pools on a laptop never starve.
Every placement and call has a deadline, because Ray waits for an infeasible one in silence. A worker whose
process died, or whose connection broke, is killed for certain before :class:`WorkerLost` is raised: a
caller that replaces it never has two. Workers are not restarted here; that is the caller's decision.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import sys
from collections.abc import Mapping
from typing import Any

import msgspec

from rollart.codec import decode
from rollart.config.resources import PoolConfig, RayConfig
from rollart.runtime.handle import MAX_CALLS, EncodingHandle, describe, result_of
from rollart.runtime.methods import MethodTable, method_table
from rollart.runtime.offload import offload
from rollart.runtime.processes import descendants, end, process
from rollart.runtime.ray_actor import ActorPlace, ActorSpec, WorkerActor
from rollart.runtime.ray_cluster import RayCluster
from rollart.runtime.runtime import (
    GPU,
    Placement,
    PlacementError,
    Runtime,
    WorkerError,
    WorkerHandle,
    WorkerInfo,
    WorkerLost,
    pool_resource,
)

STOP_GRACE = 5.0
"""Seconds that :meth:`RayRuntime.stop` gives each worker's own ``stop``."""

KILL_SECONDS = 1.0
"""Seconds that Ray gets to end a worker on this machine before we do; a frozen process never ends by itself."""

NAMESPACE = "rollart"
"""Ray's namespace of detached workers."""

_CONTROL_CALLS = 64
"""Actor concurrency beyond the bound on calls, so that cancellations never queue behind calls."""

_log = logging.getLogger(__name__)


class RayHandle(EncodingHandle):
    """Calls a :class:`WorkerActor`."""

    def __init__(self, info: WorkerInfo, table: MethodTable, max_calls: int, actor: Any, cluster: RayCluster) -> None:
        super().__init__(info, table, max_calls)
        self._actor = actor
        self._cluster = cluster

    async def _send(self, call: int, method: str, payload: bytes) -> bytes:
        errors = self._cluster.ray.exceptions
        try:
            reply: bytes = await self._actor.invoke.remote(call, method, payload)
        except errors.RayTaskError as error:  # our own actor code failed, e.g. for want of memory
            raise WorkerError(self.info, method, type(error.cause).__name__, str(error.cause), str(error)) from error
        except errors.RayError as error:
            reason = self._lost or f"{_first_cause(error)}{self._cluster.worker_errors(self.info.pid)}"
            await self._lose(reason)
            raise WorkerLost(f"{describe(self.info)} is gone: {reason}") from error
        return reply

    def _cancel(self, call: int) -> None:
        self._actor.cancel.remote(call)

    async def _end(self) -> None:
        await _end_actor(self._cluster, self._actor, self.info)


class DetachedHandle(RayHandle):
    """Calls a detached worker that others use too: losing the connection, or stopping, leaves it alone."""

    async def stop(self, grace: float) -> None:
        await self._lose("this client has let go of it")

    async def _end(self) -> None:
        return


class RayRuntime(Runtime):
    """See the module docstring. Create it with :meth:`start`.

    Args:
        cluster: The cluster to place workers on.
        max_calls: Bound on the calls in flight at one worker.
        keep_cluster: :meth:`stop` ends the workers only, because others use the cluster too.
    """

    def __init__(self, cluster: RayCluster, max_calls: int = MAX_CALLS, keep_cluster: bool = False) -> None:
        self._cluster = cluster
        self._keep_cluster = keep_cluster
        self._max_calls = max_calls
        self._actor_class = cluster.ray.remote(WorkerActor)
        self._handles: dict[str, RayHandle] = {}
        self._stopped = False

    @classmethod
    def start(cls, pools: Mapping[str, PoolConfig], config: RayConfig | None = None) -> RayRuntime:
        """Start a private cluster with these pools, or connect to the one at ``config.address``.

        Blocking (about 6-14 s for a private cluster); Ctrl-C ends it at once.

        Raises:
            PlacementError: no cluster, or it does not have the pools; the message says what to do.
        """
        config = config or RayConfig()
        if config.address is None:
            _refuse_real_pools(pools)
            amounts = {pool_resource(name): float(pool.devices) for name, pool in pools.items()}
            return cls(RayCluster.start(amounts, config.prestart, config.object_store_bytes))
        cluster = RayCluster.connect(config.address)
        missing = [name for name in pools if pool_resource(name) not in cluster.totals()]
        if missing:
            cluster.stop()
            wanted = pool_resource(missing[0])
            raise PlacementError(
                f"the Ray cluster at {config.address} has no resource {wanted!r} for pool {missing[0]!r}: start its "
                f"nodes with ray start --resources='{{\"{wanted}\": {pools[missing[0]].devices}}}', or rename the pool"
            )
        return cls(cluster)

    async def spawn(
        self, worker_class: type, placement: Placement, args: tuple[Any, ...], deadline: float
    ) -> WorkerHandle:
        if self._stopped:
            raise PlacementError(f"{placement.worker} cannot be placed: the runtime has been stopped")
        info, actor = await self._place(worker_class, placement, args, deadline, detached=False)
        handle = RayHandle(info, method_table(worker_class), self._max_calls, actor, self._cluster)
        self._handles[placement.worker] = handle
        return handle

    async def attach(
        self, worker_class: type, placement: Placement, args: tuple[Any, ...], deadline: float
    ) -> DetachedHandle:
        """The cluster's detached worker named ``placement.worker``, created if there is none.

        It outlives this runtime, but not a private cluster. Of clients that attach at once, one creates it.

        Raises:
            TypeError, PlacementError, WorkerError: as :meth:`spawn`.
        """
        info, actor = await self._place(worker_class, placement, args, deadline, detached=True)
        return DetachedHandle(info, method_table(worker_class), self._max_calls, actor, self._cluster)

    async def _place(
        self, worker_class: type, placement: Placement, args: tuple[Any, ...], deadline: float, detached: bool
    ) -> tuple[WorkerInfo, Any]:
        table = method_table(worker_class)
        spec = _spec(worker_class, placement, table.encode_constructor(args))
        if self._cluster.private:
            self._refuse_infeasible(placement)
        shared: dict[str, Any] = {"name": placement.worker, "namespace": NAMESPACE, "lifetime": "detached"}
        actor = self._new_actor(placement, **(shared | {"get_if_exists": True} if detached else {}))
        info = WorkerInfo(placement.worker, placement.role, placement.pool, placement.hardware_class, "", 0)
        try:
            async with asyncio.timeout(deadline):
                info = await self._locate(actor, info)
                result_of(info, "__init__", await actor.create.remote(spec))
        except BaseException as error:
            if not detached or isinstance(error, WorkerError):
                await _end_actor(self._cluster, actor, info)
            if isinstance(error, TimeoutError):
                raise PlacementError(await offload(self._why_not_placed, placement, deadline)) from None
            if isinstance(error, self._cluster.ray.exceptions.RayError):
                reason = f"{_first_cause(error)}{self._cluster.worker_errors(info.pid)}"
                raise PlacementError(f"{describe(info)} died while starting: {reason}") from error
            raise
        return info, actor

    def _new_actor(self, placement: Placement, **options: Any) -> Any:
        return self._actor_class.options(
            num_cpus=0,
            num_gpus=placement.resources.get(GPU, 0.0),
            resources={name: amount for name, amount in placement.resources.items() if name != GPU},
            max_concurrency=self._max_calls + _CONTROL_CALLS,
            max_restarts=0,
            **options,
        ).remote()

    async def _locate(self, actor: Any, info: WorkerInfo) -> WorkerInfo:
        """Wait until the actor's process runs, and note where."""
        place: ActorPlace = decode(await actor.locate.remote(), ActorPlace)
        located = msgspec.structs.replace(info, host=place.host, pid=place.pid)
        if self._is_local(located):
            self._cluster.adopt(process(place.pid))
        return located

    def _is_local(self, info: WorkerInfo) -> bool:
        return self._cluster.private and info.host == socket.gethostname()

    def _refuse_infeasible(self, placement: Placement) -> None:
        totals = self._cluster.totals()
        for name, amount in placement.resources.items():
            if amount > totals.get(name, 0.0):
                raise PlacementError(
                    f"{placement.worker} (role {placement.role}) needs {amount:g} of {name!r}, but the cluster has "
                    f"{totals.get(name, 0.0):g}: {_remedy(placement)}"
                )

    def _why_not_placed(self, placement: Placement, deadline: float) -> str:
        totals, free = self._cluster.totals(), self._cluster.free()
        stock = ", ".join(
            f"{name}: {amount:g} needed, {free.get(name, 0.0):g} of {totals.get(name, 0.0):g} free"
            for name, amount in placement.resources.items()
        )
        return (
            f"{placement.worker} (role {placement.role}) was not placed in {deadline:g} s "
            f"({stock or 'it needs no resources'}): {_remedy(placement)}, "
            "or raise placement.deadline if the machine is slow"
        )

    async def stop(self) -> None:
        if self._stopped:
            return
        self._stopped = True
        handles, self._handles = list(self._handles.values()), {}
        try:
            await asyncio.gather(*(handle.stop(STOP_GRACE) for handle in handles))
        finally:
            if not self._keep_cluster:
                # Inline: it is the end, it has a bound of its own, and a second Ctrl-C must not cut it short.
                self._cluster.stop()


async def _end_actor(cluster: RayCluster, actor: Any, info: WorkerInfo) -> None:
    """Kill an actor's process, and on this machine wait until it and its children are gone."""
    local = cluster.private and info.pid and info.host == socket.gethostname()
    own = process(info.pid) if local else None
    doomed = descendants(info.pid) | {own} if own is not None else set()
    try:
        cluster.ray.kill(actor)
    except (cluster.ray.exceptions.RayError, ValueError) as error:
        _log.debug("%s was gone before it was killed: %s", describe(info), error)
    if doomed:
        await offload(end, doomed, KILL_SECONDS)


def _spec(worker_class: type, placement: Placement, args: bytes) -> bytes:
    """What the actor is told, if another process can import the class."""
    module, name = worker_class.__module__, worker_class.__qualname__
    if module == "__main__" or "<" in name:
        place = "the main script" if module == "__main__" else "a function"
        raise TypeError(
            f"worker class {name} is defined in {place}, where no other process can import it: "
            "move it to the top level of a module"
        )
    search_path = tuple(dict.fromkeys([*(path for path in sys.path if path), os.getcwd()]))
    return msgspec.msgpack.encode(ActorSpec(module, name, search_path, os.getcwd(), placement.environment, args))


def _refuse_real_pools(pools: Mapping[str, PoolConfig]) -> None:
    for name, pool in pools.items():
        if not pool.logical:
            raise PlacementError(
                f"pool {name!r} is not logical, so its devices belong to a running Ray cluster: set ray.address, "
                f"or pools.{name}.logical=true to make it a share of this machine"
            )


def _remedy(placement: Placement) -> str:
    return (
        f"give pool {placement.pool!r} more devices (pools.{placement.pool}.devices), ask for fewer workers, "
        f"or place the role elsewhere (placement.{placement.role})"
    )


def _first_cause(error: BaseException) -> str:
    """What Ray says of a lost actor, without its standing advice."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    details = [line for line in lines if "exit detail" in line or line.startswith("The actor is dead")]
    text = (details or lines or [type(error).__name__])[0]
    return text.split(" Some common causes include", 1)[0]
