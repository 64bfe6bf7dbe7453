"""Cluster: all workers of one role, and the calls that its class declares for them.

The methods that carry a declaration become methods of the Cluster (``await cluster.train_step(batch)``) and
go where :mod:`rollart.data_plane.declarations` says; which worker that is, ``routing.route`` decides. The
other methods are called through ``handles``. Invariants: workers are spawned all or none; every call has a
deadline; a lost worker gives back its devices and is not routed to; taking another hardware class than the
preferred one is recorded, once until it changes.

Who calls it: whoever starts a run, and the control plane for everything but generation, which the LLMProxy
routes itself.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any

from rollart.data_plane.declarations import (
    TAG_NAME,
    Declaration,
    DeclarationError,
    ExecuteAll,
    HardwareMapping,
    Serverless,
    declarations,
)
from rollart.data_plane.routing import Candidate, class_for, route
from rollart.data_plane.serverless import check_url
from rollart.data_plane.worker import Worker
from rollart.events import EventSink, Fallback, WorkerPlaced
from rollart.resource_plane.binding import WorkerRequest
from rollart.resource_plane.resource_manager import ResourceManager
from rollart.runtime.methods import method_table
from rollart.runtime.runtime import Placement, Runtime, WorkerHandle, WorkerLost

Call = Callable[..., Awaitable[Any]]

CALL_SECONDS = 60.0
"""Default deadline of a call."""

CONNECT_SECONDS = 60.0
"""Deadline for importing inline functions on a worker."""


class Cluster:
    """See the module docstring. Create it with :meth:`create`.

    Attributes:
        handles: The workers, in the order of their requests; :meth:`restart` replaces one in place.
    """

    def __init__(
        self,
        worker_class: type[Worker],
        handles: Sequence[WorkerHandle],
        start: Callable[[int], Awaitable[WorkerHandle]],
        resources: ResourceManager,
        sink: EventSink,
        affinity: Mapping[str, str] | None = None,
    ) -> None:
        self.handles = list(handles)
        self._start = start
        self._class = worker_class
        self._table = method_table(worker_class)
        self._resources = resources
        self._sink = sink
        self._affinity = affinity
        self._timeout = CALL_SECONDS
        self._in_flight = [0] * len(self.handles)
        self._lost: set[int] = set()
        self._fallbacks: dict[str, str] = {}
        self._calls = {name: self._bound(name, declared) for name, declared in declarations(worker_class).items()}

    @classmethod
    async def create(
        cls,
        worker_class: type[Worker],
        requests: Sequence[WorkerRequest],
        args: Callable[[int], tuple[Any, ...]],
        *,
        runtime: Runtime,
        resources: ResourceManager,
        sink: EventSink,
        deadline: float,
        affinity: Mapping[str, str] | None = None,
        urls: Mapping[str, str] | None = None,
    ) -> Cluster:
        """Bind the workers to pools and spawn them, all or none.

        Args:
            worker_class: What to spawn.
            requests: One a worker.
            args: Constructor arguments of the worker with this index.
            runtime: Where they live.
            resources: What binds them.
            sink: Where placements and fallbacks are recorded.
            deadline: Seconds that one worker may take to start.
            affinity: Hardware class by domain, instead of what ``@hw_mapping`` declares.
            urls: URL by attribute, instead of what ``@register_serverless`` declares.

        Raises:
            PlanError: the pools can never hold them.
            PlacementError, WorkerError: the first worker that did not start, with its cause.
            ServerlessError: a URL that no provider serves.
            TypeError: the class cannot be called across a process border.
        """
        _check_names(worker_class)
        serverless = _serverless_urls(worker_class, urls or {})
        placements = await resources.bind(requests)

        async def start(index: int) -> WorkerHandle:
            (placement,) = await resources.bind([requests[index]])  # its old place, unless that was given back
            handle = await runtime.spawn(worker_class, placement, args(index), deadline)
            try:
                if serverless:
                    await handle.call("connect_serverless", serverless, timeout=CONNECT_SECONDS)
            except BaseException:
                await handle.kill()
                raise
            return handle

        spawns = [asyncio.ensure_future(start(index)) for index in range(len(placements))]
        try:
            handles = await _first_cause(spawns)
            cluster = cls(worker_class, handles, start, resources, sink, affinity)
        except BaseException:
            await _undo(spawns, placements, resources)
            raise
        for handle in handles:
            info = handle.info
            sink.emit(WorkerPlaced(info.worker, info.role, info.pool, info.hardware_class, info.host))
        return cluster

    def __getattr__(self, name: str) -> Call:
        calls: dict[str, Call] = self.__dict__.get("_calls", {})
        if name in calls:
            return calls[name]
        raise AttributeError(
            f"a Cluster of {self.__dict__.get('_class', Worker).__name__} has no method {name!r}; "
            f"declared: {', '.join(calls) or 'none'} (others are called through handles)"
        )

    def within(self, seconds: float) -> Cluster:
        """The same cluster, whose calls have this deadline."""
        other = copy.copy(self)
        other._timeout = seconds
        other._calls = {name: other._bound(name, declared) for name, declared in declarations(self._class).items()}
        return other

    async def restart(self, index: int) -> WorkerHandle:
        """Start a worker again whose process is gone, with the same arguments and in the same place.

        Raises:
            PlanError, PlacementError, WorkerError: it did not start; it stays lost.
        """
        self.handles[index] = handle = await self._start(index)
        self._lost.discard(index)
        return handle

    async def stop(self, grace: float) -> None:
        """Stop all workers and give back their devices. Idempotent."""
        await asyncio.gather(*(handle.stop(grace) for handle in self.handles))
        for handle in self.handles:
            await self._resources.release(handle.info.worker)

    def _bound(self, name: str, declared: Declaration) -> Call:
        match declared:
            case ExecuteAll():
                return partial(self._execute_all, name)
            case HardwareMapping():
                return partial(self._by_hardware, name, self._affinity or declared.hw_affinity)
            case Serverless():
                return partial(self._by_load, name)

    async def _execute_all(self, name: str, *args: Any, **kwargs: Any) -> list[Any]:
        return await self._everywhere(name, self._table.method(name).bind(*args, **kwargs), self._timeout)

    async def _everywhere(self, name: str, args: tuple[Any, ...], timeout: float) -> list[Any]:
        calls = [asyncio.ensure_future(self._call(i, name, args, timeout)) for i in range(len(self.handles))]
        return await _first_cause(calls)

    async def _by_hardware(self, name: str, affinity: Mapping[str, str], *args: Any, **kwargs: Any) -> Any:
        method = self._table.method(name)
        values = method.bind(*args, **kwargs)
        domain: str = values[method.position(TAG_NAME)]
        wanted = class_for(affinity, domain)
        choice = route(wanted, self._candidates())
        subject = f"{self._class.role}:{domain}"
        if choice.fallback and self._fallbacks.get(subject) != choice.hardware_class:
            self._sink.emit(Fallback(subject, wanted, choice.hardware_class, choice.reason))
        self._fallbacks[subject] = choice.hardware_class if choice.fallback else ""
        return await self._call(choice.index, name, values, self._timeout)

    async def _by_load(self, name: str, *args: Any, **kwargs: Any) -> Any:
        values = self._table.method(name).bind(*args, **kwargs)
        return await self._call(route("", self._candidates()).index, name, values, self._timeout)

    def _candidates(self) -> list[Candidate]:
        return [
            Candidate(index, handle.info.hardware_class, index not in self._lost, float(self._in_flight[index]))
            for index, handle in enumerate(self.handles)
        ]

    async def _call(self, index: int, name: str, args: tuple[Any, ...], timeout: float) -> Any:
        self._in_flight[index] += 1
        try:
            return await self.handles[index].call(name, *args, timeout=timeout)
        except WorkerLost:
            if index not in self._lost:
                self._lost.add(index)
                await self._resources.release(self.handles[index].info.worker)
            raise
        finally:
            self._in_flight[index] -= 1


async def _first_cause(calls: Sequence[asyncio.Future[Any]]) -> list[Any]:
    """All results, or the error of the first call that failed; the others are then cancelled."""
    try:
        done, _ = await asyncio.wait(calls, return_when=asyncio.FIRST_EXCEPTION)
        failed = [call for call in calls if call in done and call.exception() is not None]
        return [call.result() for call in failed[:1] or calls]
    finally:
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)


async def _undo(
    spawns: Sequence[asyncio.Future[WorkerHandle]], placements: Sequence[Placement], resources: ResourceManager
) -> None:
    """End the workers that did start, and give back all devices."""
    for spawn in spawns:
        if not spawn.cancelled() and spawn.exception() is None:
            await spawn.result().kill()
    for placement in placements:
        await resources.release(placement.worker)


def _serverless_urls(worker_class: type[Worker], overrides: Mapping[str, str]) -> dict[str, str]:
    declared = [each for each in declarations(worker_class).values() if isinstance(each, Serverless)]
    urls = {each.attribute: overrides.get(each.attribute, each.url) for each in declared}
    for url in urls.values():
        check_url(url)
    return urls


def _check_names(worker_class: type[Worker]) -> None:
    for name in declarations(worker_class):
        if hasattr(Cluster, name) or name == "handles":
            raise DeclarationError(
                f"{worker_class.__qualname__}.{name}: a Cluster has an attribute {name!r} of its own; rename the method"
            )
