"""What computes rewards in a simulated run: serverless instances, GPUs of their own, or no limit at all.

A pure model on the running loop's time: no thread, no I/O and no timer but those of the calls themselves, so that an
idle capacity keeps no virtual loop alive. Invariants:

* calls get an instance in the order in which they came;
* there are never more instances than allowed, those that are starting included;
* an instance is busy while it works on at least one call, and provisioned from the begin of its start to its end, so
  busy seconds never exceed provisioned ones;
* a cancelled call gives its place back, whether it waited or worked.

Called by the scorers of the simulated environment hosts, which share one capacity a host.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Iterable

import msgspec

from rollart.config.draw import Source, sampler
from rollart.config.simulation import RewardCapacityConfig
from rollart.resource_plane.hardware import hardware

HOUR = 3600.0


class RewardStats(msgspec.Struct, frozen=True):
    """What a capacity has done so far.

    Attributes:
        kind: As configured.
        calls: Begun, cancelled ones included.
        waited: Calls that found no free instance.
        wait_seconds: Of all calls together, for a free instance or a cold start.
        cold_starts: Instances that were started.
        busy_seconds: Of all instances together, working on at least one call.
        provisioned_seconds: Of all instances together, starting, busy or idle.
        peak_instances: Most at once; over several capacities the sum of their peaks.
        cost: Of the provisioned seconds, in GPU-hours of an H20.
    """

    kind: str
    calls: int = 0
    waited: int = 0
    wait_seconds: float = 0.0
    cold_starts: int = 0
    busy_seconds: float = 0.0
    provisioned_seconds: float = 0.0
    peak_instances: int = 0
    cost: float = 0.0

    @property
    def utilisation(self) -> float:
        """Busy share of the provisioned seconds; 0 if there were none."""
        return self.busy_seconds / self.provisioned_seconds if self.provisioned_seconds else 0.0


def merged(stats: Iterable[RewardStats]) -> RewardStats:
    """The sum over the hosts of a run.

    Raises:
        ValueError: there are none.
    """
    parts = list(stats)
    if not parts:
        raise ValueError("no reward statistics to add up: a run has one environment host or more")
    sums = {
        field: sum(getattr(part, field) for part in parts) for field in RewardStats.__struct_fields__ if field != "kind"
    }
    return RewardStats(parts[0].kind, **sums)


class _Instance:
    __slots__ = ("born", "busy_since", "idle_since", "running")

    def __init__(self, born: float) -> None:
        self.born = born
        self.running = 0
        self.busy_since = 0.0
        self.idle_since = 0.0


class RewardCapacity:
    """See the module docstring. Made on the running loop, whose time is the begin of ``dedicated`` instances.

    Args:
        config: The whole run's.
        part, parts: Which of how many equal parts this one is; the first ones take the remainder.

    Raises:
        ValueError: the part would have no instance, or the hardware class is unknown.
    """

    def __init__(self, config: RewardCapacityConfig, part: int = 0, parts: int = 1) -> None:
        self._kind = config.kind
        self._places = config.calls_per_instance
        self._overhead = sampler(config.overhead)
        self._cold_start = sampler(config.cold_start)
        total = {"serverless": config.concurrency, "dedicated": config.replicas, "free": 0}[config.kind]
        self._limit = total // parts + (part < total % parts)
        if config.kind != "free" and self._limit < 1:
            raise ValueError(f"{total} reward instances cannot be shared by {parts} hosts: give each one or more")
        # Dedicated GPUs are there whether they are used or not.
        self._keep_alive = config.keep_alive if config.kind == "serverless" else math.inf
        self._price = {"serverless": config.instance_cost, "dedicated": 0.0, "free": 0.0}[config.kind]
        self._alive: set[_Instance] = set()
        self._idle: deque[_Instance] = deque()
        """Longest idle first."""
        self._partial: dict[_Instance, None] = {}
        """At work, with room for more calls."""
        self._queue: deque[asyncio.Future[_Instance]] = deque()
        self._waiting = self._starting = 0
        self._calls = self._waited = self._cold_starts = self._peak = 0
        self._wait_seconds = self._busy = self._provisioned = 0.0
        if config.kind == "dedicated":
            self._price = hardware(config.hardware).cost
            now = asyncio.get_running_loop().time()
            self._idle.extend(_Instance(now) for _ in range(self._limit))
            self._alive.update(self._idle)
            self._peak = self._limit

    async def call(self, seconds: float, source: Source) -> None:
        """One call: waits for an instance, keeps it for ``seconds``, then travels back.

        Args:
            source: Of the cold start, if the call causes one, and of the call's overhead.
        """
        self._calls += 1
        overhead = self._overhead(source)
        if self._kind == "free":
            await asyncio.sleep(seconds + overhead)
            self._busy += seconds
            return
        instance = self._take()
        if instance is None:
            instance = await self._wait(source)
        try:
            await asyncio.sleep(seconds)
        finally:
            self._release(instance)
        if overhead > 0:
            await asyncio.sleep(overhead)

    def stats(self, now: float) -> RewardStats:
        """What has been done until ``now``, which lies after every call so far."""
        self._expire(now)
        busy = self._busy + math.fsum(now - each.busy_since for each in self._alive if each.running)
        provisioned = self._provisioned + math.fsum(now - each.born for each in self._alive)
        return RewardStats(
            kind=self._kind,
            calls=self._calls,
            waited=self._waited,
            wait_seconds=self._wait_seconds,
            cold_starts=self._cold_starts,
            busy_seconds=busy,
            provisioned_seconds=busy if self._kind == "free" else provisioned,
            peak_instances=self._peak,
            cost=provisioned / HOUR * self._price,
        )

    def _take(self) -> _Instance | None:
        now = asyncio.get_running_loop().time()
        self._expire(now)
        if self._partial:
            instance = next(iter(self._partial))
        elif self._idle:
            # The last one used: the others reach the end of their lives sooner.
            instance = self._idle.pop()
        else:
            return None
        self._occupy(instance, now)
        return instance

    def _occupy(self, instance: _Instance, now: float) -> None:
        if instance.running == 0:
            instance.busy_since = now
        instance.running += 1
        if instance.running < self._places:
            self._partial[instance] = None
        else:
            self._partial.pop(instance, None)

    def _release(self, instance: _Instance) -> None:
        if (waiter := self._next_waiter()) is not None:
            waiter.set_result(instance)
            return
        instance.running -= 1
        if instance.running:
            self._partial[instance] = None
            return
        self._partial.pop(instance, None)
        instance.idle_since = asyncio.get_running_loop().time()
        self._busy += instance.idle_since - instance.busy_since
        self._idle.append(instance)

    async def _wait(self, source: Source) -> _Instance:
        loop = asyncio.get_running_loop()
        place: asyncio.Future[_Instance] = loop.create_future()
        self._queue.append(place)
        self._waited += 1
        self._waiting += 1
        if len(self._alive) < self._limit and self._starting * self._places < self._waiting:
            self._start(self._cold_start(source))
        began = loop.time()
        try:
            return await place
        except asyncio.CancelledError:
            if place.cancelled():
                self._waiting -= 1
            else:
                self._release(place.result())
            raise
        finally:
            self._wait_seconds += loop.time() - began

    def _next_waiter(self) -> asyncio.Future[_Instance] | None:
        while self._queue:
            waiter = self._queue.popleft()
            if not waiter.done():
                self._waiting -= 1
                return waiter
        return None

    def _start(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        instance = _Instance(loop.time())
        self._alive.add(instance)
        self._peak = max(self._peak, len(self._alive))
        self._starting += 1
        self._cold_starts += 1
        loop.call_later(seconds, self._started, instance)

    def _started(self, instance: _Instance) -> None:
        self._starting -= 1
        now = asyncio.get_running_loop().time()
        while instance.running < self._places and (waiter := self._next_waiter()) is not None:
            self._occupy(instance, now)
            waiter.set_result(instance)
        if instance.running == 0:
            instance.idle_since = now
            self._idle.append(instance)

    def _expire(self, now: float) -> None:
        """End the instances whose time has passed; they ended when it passed, not now."""
        while self._idle and (end := self._idle[0].idle_since + self._keep_alive) <= now:
            instance = self._idle.popleft()
            self._alive.remove(instance)
            self._provisioned += end - instance.born
