"""Plays a simulated run in real time: the control plane of a real run over Ray actors that sleep by the model.

The workers are those of a simulation, each in a process of its own: engines, trainer, environments and rewards sleep
for as long as the performance model says, divided by a factor (:func:`rollart.simulation.time_scale.scaled`), and
everything between them is real: Job, LLMProxy, RolloutScheduler, protocol, codec, Ray. The very same configuration is
simulated in virtual time, for comparison. Called by :mod:`benchmarks.emulated`.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from rollart.config.simulation import SimulatedConfig
from rollart.events import Event, RunEnded, RunStarted, TrainStepped, TurnFinished
from rollart.runtime.ray import RayRuntime
from rollart.runtime.ray_cluster import RayCluster
from rollart.runtime.runtime import Placement, Runtime, WorkerHandle, pool_resource
from rollart.simulation.measures import Measured
from rollart.simulation.simulator import SimulatedRun, simulate
from rollart.simulation.time_scale import scaled

SKIPPED = 2
"""Iterations at the start that are not measured: the pipeline of an asynchronous run fills."""

OBJECT_STORE_BYTES = 128 << 20


class Mark(NamedTuple):
    """The driver's process at one moment: clocks in seconds, and counts since the start."""

    wall: float
    cpu: float
    """Of all threads."""
    loop_cpu: float
    """Of the thread of the event loop: the control plane, and Ray's part that runs when a call is made."""
    turns: int
    calls: int

    def since(self, before: Mark) -> Mark:
        """What has passed."""
        return Mark(
            self.wall - before.wall,
            self.cpu - before.cpu,
            self.loop_cpu - before.loop_cpu,
            self.turns - before.turns,
            self.calls - before.calls,
        )


class DriverMeter:
    """An event sink that reads the clocks of the driver's process: at the start, at every train step, at the end."""

    def __init__(self) -> None:
        self.marks: list[Mark] = []
        self.calls = 0
        self._turns = 0

    def emit(self, event: Event) -> None:
        if isinstance(event, TurnFinished):
            self._turns += 1
        elif isinstance(event, RunStarted | TrainStepped | RunEnded):
            clocks = time.perf_counter(), time.process_time(), time.thread_time()
            self.marks.append(Mark(*clocks, self._turns, self.calls))


class CountedHandle(WorkerHandle):
    """Counts the calls of a worker."""

    def __init__(self, handle: WorkerHandle, meter: DriverMeter) -> None:
        self.info = handle.info
        self._handle = handle
        self._meter = meter

    async def call(self, method: str, *args: Any, timeout: float) -> Any:
        self._meter.calls += 1
        return await self._handle.call(method, *args, timeout=timeout)

    async def stop(self, grace: float) -> None:
        await self._handle.stop(grace)

    async def kill(self) -> None:
        await self._handle.kill()


class CountedRuntime(Runtime):
    """Places workers by another runtime, and counts their calls."""

    def __init__(self, runtime: Runtime, meter: DriverMeter) -> None:
        self._runtime = runtime
        self._meter = meter

    async def spawn(
        self, worker_class: type, placement: Placement, args: tuple[Any, ...], deadline: float
    ) -> WorkerHandle:
        return CountedHandle(await self._runtime.spawn(worker_class, placement, args, deadline), self._meter)

    async def stop(self) -> None:
        await self._runtime.stop()


class Emulated(msgspec.Struct, frozen=True):
    """What a run in real time gave; seconds are the emulation's own, not multiplied by the factor.

    Attributes:
        measured: Its numbers, as of a simulated run.
        simulated: Those of the same configuration in virtual time.
        factor: Modelled seconds in one second.
        iterations: Seconds from the end of each measured train step to the end of the next.
        driver: What the driver's process did between the ends of the first and of the last train step.
    """

    measured: Measured
    simulated: Measured
    factor: float
    iterations: tuple[float, ...]
    driver: Mark

    @property
    def deviation(self) -> float:
        """Of the emulation's step time from the simulation's, as a share of it."""
        return self.measured.step_time_s / self.simulated.step_time_s - 1.0


@contextlib.contextmanager
def ray_cluster(pools: dict[str, int]) -> Iterator[RayCluster]:
    """A private cluster with so many devices in each pool, on which one run is placed after the other."""
    resources = {pool_resource(name): float(devices) for name, devices in pools.items()}
    cluster = RayCluster.start(resources, 2, OBJECT_STORE_BYTES)
    try:
        yield cluster
    finally:
        cluster.stop()


def emulate(config: SimulatedConfig, factor: float, cluster: RayCluster, skipped: int = SKIPPED) -> Emulated:
    """Play a run ``factor`` times as fast as its hardware would, in real time and in virtual time."""
    fast = scaled(config, factor)
    with _folder() as folder:
        simulated = simulate(fast, folder, skipped, log=False).measured
    meter = DriverMeter()
    with _folder() as folder:
        measured = asyncio.run(
            _play(fast, folder, skipped, CountedRuntime(RayRuntime(cluster, keep_cluster=True), meter), meter)
        )
    steps = meter.marks[1:-1]
    chosen = steps[max(0, skipped - 1) : len(steps) - config.alpha]
    return Emulated(
        measured=measured,
        simulated=simulated,
        factor=factor,
        iterations=tuple(after.wall - before.wall for before, after in itertools.pairwise(chosen)),
        driver=steps[-1].since(steps[0]),
    )


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="rollart-emulate-") as folder:
        yield Path(folder)


async def _play(config: SimulatedConfig, folder: Path, skipped: int, runtime: Runtime, meter: DriverMeter) -> Measured:
    run = SimulatedRun(config, folder, skipped, sink=meter, wall_time=time.time())
    try:
        return (await run.play(runtime)).measured
    finally:
        await runtime.stop()
