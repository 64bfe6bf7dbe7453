"""Which worker goes to which pool: the pure decision of the resource manager.

A role asks for workers of a hardware class (its declared affinity), or of one pool (``placement`` in the
configuration). Rules, in order:

1. What can never be is refused with the setting to change: an unknown pool or class, a worker in a
   serverless pool, more workers than devices.
2. Workers whose pool is named are bound first. If others hold that pool at the moment, they fall back.
3. Workers that run within those of another role (stateless rewards within the environment hosts) go where these
   are and take no device. If none of these is in the pool named for them, that is a fallback.
4. The others go to pools of the class they prefer, and where these are full or absent to the classes that
   may stand in for it, best first (:func:`~rollart.resource_plane.hardware.stand_ins`). Within a class the
   pool with the most free devices comes first, then the order of the configuration.

A worker is bound at once or refused; nobody waits. Taking another class than the one asked for is reported.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from rollart.resource_plane.hardware import CATALOGUE, LOCAL, stand_ins, unknown_class
from rollart.resource_plane.pools import PlanError, PoolView


class WorkerRequest(msgspec.Struct, frozen=True):
    """A worker that wants a place.

    Attributes:
        worker: Unique name.
        role: Its role.
        affinity: Hardware class it prefers, or ``local``.
        pool: The pool it must go to, if the configuration names one.
        devices: Devices it takes.
        setting: The setting that asks for it, for messages.
        within: The role whose workers it runs inside of, taking no device; empty if it has a process of its own.
    """

    worker: str
    role: str
    affinity: str
    pool: str | None = None
    devices: int = 1
    setting: str = ""
    within: str = ""


class Binding(msgspec.Struct, frozen=True):
    """Where a worker goes; ``fallback`` says why it is not the place asked for (``wanted``), if so."""

    worker: str
    role: str
    pool: str
    hardware_class: str
    devices: tuple[int, ...]
    wanted: str
    fallback: str = ""


def bind(pools: Mapping[str, PoolView], requests: Sequence[WorkerRequest]) -> tuple[list[Binding], dict[str, PoolView]]:
    """Bind all workers, or none.

    Returns:
        The bindings in the order of ``requests``, and the pools afterwards.

    Raises:
        PlanError: a request can never be met, or not together with the others; the message says what to do.
    """
    for request in requests:
        _refuse_impossible(pools, request)
    _refuse_overfull(pools, requests)
    now = dict(pools)
    bindings: dict[str, Binding] = {}
    for request in sorted(requests, key=lambda each: (each.within != "", each.pool is None)):
        binding = _bind_within(bindings.values(), request) if request.within else _bind_one(now, request)
        if binding is None:
            raise PlanError(_no_room(pools, now, requests, request))
        bindings[request.worker] = binding
    return [bindings[request.worker] for request in requests], now


def _bind_one(now: dict[str, PoolView], request: WorkerRequest) -> Binding | None:
    """Bind one worker and update ``now``; None if no compatible pool has room."""
    wanted = request.pool or request.affinity
    for pool in _preference(now, request):
        if len(pool.free) < request.devices:
            continue
        now[pool.name], devices = pool.take(request.worker, request.devices)
        reason = _reason(now, request, pool)
        return Binding(request.worker, request.role, pool.name, pool.hardware_class, devices, wanted, reason)
    return None


def _bind_within(bound: Iterable[Binding], request: WorkerRequest) -> Binding | None:
    """Bind one worker to where the workers are that it runs inside of."""
    hosts = [binding for binding in bound if binding.role == request.within]
    if not hosts:
        return None
    wanted = request.pool or request.affinity
    host = next((each for each in hosts if each.pool == request.pool), hosts[0])
    reason = "" if request.pool in (None, host.pool) else f"it runs inside the workers of role {request.within}"
    return Binding(request.worker, request.role, host.pool, host.hardware_class, (), wanted, reason)


def _preference(now: Mapping[str, PoolView], request: WorkerRequest) -> list[PoolView]:
    """Pools that may hold the worker, most wanted first."""
    affinity = now[request.pool].hardware_class if request.pool is not None else request.affinity
    ranks = {name: rank for rank, name in enumerate(dict.fromkeys([affinity, *stand_ins(affinity)]))}
    compatible = [pool for pool in now.values() if pool.hosts_workers and pool.hardware_class in ranks]
    return sorted(compatible, key=lambda pool: (pool.name != request.pool, ranks[pool.hardware_class], -len(pool.free)))


def _reason(now: Mapping[str, PoolView], request: WorkerRequest, taken: PoolView) -> str:
    if request.pool is not None:
        return "" if taken.name == request.pool else f"pool {request.pool} is full"
    if request.affinity in (LOCAL, taken.hardware_class):
        return ""
    if any(pool.hardware_class == request.affinity for pool in now.values()):
        return f"every pool of class {request.affinity} is full"
    return f"there is no pool of class {request.affinity}"


def _refuse_impossible(pools: Mapping[str, PoolView], request: WorkerRequest) -> None:
    if request.affinity not in CATALOGUE and request.affinity != LOCAL:
        raise PlanError(f"{request.worker}: {unknown_class(request.affinity)}")
    if request.pool is None:
        return
    if request.pool not in pools:
        near = difflib.get_close_matches(request.pool, pools, n=1)
        hint = f"did you mean '{near[0]}'?" if near else f"pools: {', '.join(pools)}"
        raise PlanError(f"placement.{request.role}: unknown pool '{request.pool}': {hint}")
    if not pools[request.pool].hosts_workers:
        raise PlanError(
            f"placement.{request.role}: pool '{request.pool}' is serverless, which runs functions and holds no worker"
            f"{f', and {request.role}s run inside the workers of role {request.within}' if request.within else ''}: "
            "choose another pool"
        )


def _refuse_overfull(pools: Mapping[str, PoolView], requests: Sequence[WorkerRequest]) -> None:
    """Named pools must be large enough for the workers that the configuration puts there."""
    for pool in pools.values():
        here = [request for request in requests if request.pool == pool.name and not request.within]
        needed = sum(request.devices for request in here)
        if needed > pool.devices:
            roles = ", ".join(dict.fromkeys(f"placement.{request.role}" for request in here))
            raise PlanError(
                f"{roles}: {_count(here)} need {needed} devices of pool '{pool.name}', which has {pool.devices}: "
                f"raise pools.{pool.name}.devices{_or_fewer(here)}"
            )


def _no_room(
    pools: Mapping[str, PoolView], now: Mapping[str, PoolView], requests: Sequence[WorkerRequest], failed: WorkerRequest
) -> str:
    requests = [request for request in requests if not request.within]
    needed = sum(request.devices for request in requests)
    stock = ", ".join(f"{pool.name}: {len(pool.free)} of {pool.devices} free" for pool in pools.values())
    left = sum(len(pool.free) for pool in now.values() if pool.hosts_workers)
    return (
        f"no room for {failed.worker} (role {failed.role}): {_count(requests)} need {needed} devices ({stock}; "
        f"{left} left when its turn came): raise pools.<name>.devices{_or_fewer(requests)}"
    )


def _count(requests: Sequence[WorkerRequest]) -> str:
    return f"{len(requests)} workers"


def _or_fewer(requests: Iterable[WorkerRequest]) -> str:
    settings = list(dict.fromkeys(request.setting for request in requests if request.setting))
    return f" or lower {' or '.join(settings)}" if settings else ""
