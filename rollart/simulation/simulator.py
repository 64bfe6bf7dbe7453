"""One simulated run: the resource manager, the Clusters and the Job of a real run around modelled workers.

The event log, the summary and the report are those of a training run. :func:`simulate` plays it on a virtual clock,
where the same configuration gives the same log, byte for byte. Placed by another runtime on a real loop, the same
:class:`SimulatedRun` is an emulation: its workers sleep for as long as the performance model says.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from rollart.config.simulation import SimulatedConfig
from rollart.control_plane.job import Job, JobHooks
from rollart.control_plane.job_state import JobState
from rollart.control_plane.wiring import JobWorkers
from rollart.data_plane.cluster import Cluster
from rollart.data_plane.worker import ActorGen, ActorTrain, Environment, Reward, Worker
from rollart.events import EventLog, EventSink, Tee
from rollart.resource_plane.binding import bind
from rollart.resource_plane.hardware import hardware
from rollart.resource_plane.job_resources import job_resources
from rollart.resource_plane.planning import worker_requests
from rollart.resource_plane.pools import pools_of
from rollart.resource_plane.resource_manager import ResourceManager
from rollart.runtime.runtime import Runtime
from rollart.simulation import virtual_loop
from rollart.simulation.environment_parts import PARTS, SimulatedEnvHost
from rollart.simulation.measures import Measured, Measures
from rollart.simulation.runtime import SimulatedRuntime
from rollart.simulation.serverless import RewardStats
from rollart.simulation.workers import SimulatedGenerator, SimulatedLearner, simulated_core

AFFINITIES = {role.role: role.hardware_affinity for role in (ActorTrain, ActorGen, Environment, Reward)}

EVENTS = "events"
"""Folder of the event log in a run folder."""

STATS_SECONDS = 60.0
"""Deadline for asking a host what its rewards took."""


class SimulationResult(msgspec.Struct, frozen=True):
    """What a simulated run gave.

    Attributes:
        measured: Its numbers.
        rewards: Of each environment host.
        seconds: From the start of the job to its end, on the clock of its loop.
        cost: Device-hours by their price (an H20-hour is 1), serverless instances included.
    """

    measured: Measured
    rewards: tuple[RewardStats, ...]
    seconds: float
    cost: float


def check(config: SimulatedConfig) -> None:
    """Find out, before anything is started, whether a run can be placed and its model fits.

    Raises:
        PlanError: the workers do not fit the pools.
        ValueError: the model or a constant is unknown, or the model does not fit an engine.
    """
    bindings, _ = bind(pools_of(config.pools), worker_requests(config, AFFINITIES))
    for hardware_class in {each.hardware_class for each in bindings if each.role == ActorGen.role}:
        simulated_core(config, 0, hardware_class)


def check_measurable(config: SimulatedConfig, skipped: int = 1) -> None:
    """Find out, before anything is started, whether iterations are left to measure.

    Raises:
        ValueError: none is.
    """
    if config.run.iterations <= skipped + config.alpha:
        raise ValueError(
            f"run.iterations is {config.run.iterations}, but {skipped} at the start and {config.alpha} at the end are "
            f"not measured: set it to {skipped + config.alpha + 1} or more"
        )


def simulate(
    config: SimulatedConfig, folder: Path, skipped: int = 1, log: bool = True, sink: EventSink | None = None
) -> SimulationResult:
    """Simulate a run.

    Args:
        config: The run.
        folder: Its run folder, which exists.
        skipped: Iterations at the start that are not measured.
        log: Whether to write the event log.
        sink: Gets every event besides.

    Raises:
        PlanError: the workers do not fit the pools.
        ValueError: the model does not fit an engine, or too few iterations are left to measure.
        rollart.simulation.virtual_loop.Deadlock: nothing can happen any more; the message says who waits for whom.
    """
    run = SimulatedRun(config, folder, skipped, log, sink)

    async def play() -> SimulationResult:
        runtime = SimulatedRuntime()
        result = await run.play(runtime)
        await runtime.stop()
        return result

    with _little_garbage_collection():
        return virtual_loop.run(play(), run.explain)


class SimulatedRun:
    """One run and what it is made of; played once.

    Args:
        config, folder, skipped, log, sink: As of :func:`simulate`.
        wall_time: Unix time of its start, for the event log; a virtual run starts at 0, so that logs can be compared.
    """

    def __init__(
        self,
        config: SimulatedConfig,
        folder: Path,
        skipped: int = 1,
        log: bool = True,
        sink: EventSink | None = None,
        wall_time: float = 0.0,
    ) -> None:
        self._config = config
        self._folder = folder
        self._skipped = skipped
        self._log = log
        self._sink = sink
        self._wall_time = wall_time
        self._job: Job | None = None

    def explain(self) -> str:
        """Who waits for whom."""
        return "" if self._job is None else self._job.wait_graph()

    async def play(self, runtime: Runtime) -> SimulationResult:
        """Place the workers and run the job to its end; the caller stops the runtime.

        Raises:
            PlacementError, WorkerError, WorkerLost: a worker did not start, or failed.
            PlanError, ValueError: as :func:`simulate`.
        """
        config, loop = self._config, asyncio.get_running_loop()
        measures = Measures(loop.time)
        sinks: list[EventSink] = [measures] if self._sink is None else [measures, self._sink]
        log = self._event_log(loop) if self._log else None
        if log is not None:
            sinks.insert(0, log)
        try:
            async with job_resources(config.run.name, Tee(*sinks)) as resources:
                workers = await self._place(runtime, resources, Tee(*sinks))
                hooks = JobHooks(lambda batch: None, lambda index: None)
                affinity = config.placement.affinity
                self._job = Job(config, workers, affinity, self._folder, Tee(*sinks), hooks, JobState())
                began = loop.time()
                await self._job.run()
                seconds = loop.time() - began
                rewards = [await host.call("reward_stats", timeout=STATS_SECONDS) for host in workers.hosts]
        finally:
            if log is not None:
                log.close()
        measured = measures.result(config.alpha, self._skipped)
        return SimulationResult(measured, tuple(rewards), seconds, self._cost(seconds, rewards))

    def _event_log(self, loop: asyncio.AbstractEventLoop) -> EventLog:
        folder, run = self._folder / EVENTS, self._config.run.name
        return EventLog(folder, run, "driver", loop.time(), self._wall_time, loop.time)

    async def _place(self, runtime: Runtime, resources: ResourceManager, sink: EventSink) -> JobWorkers:
        config = self._config
        await resources.declare(pools_of(config.pools))
        requests = worker_requests(config, AFFINITIES)
        await resources.bind(requests)
        classes = {worker: binding.hardware_class for worker, binding in (await resources.bindings()).items()}

        async def cluster(worker: type[Worker], args: Callable[[int, str], tuple[Any, ...]]) -> Cluster:
            mine = [request for request in requests if request.role == worker.role]
            return await Cluster.create(
                worker,
                mine,
                lambda index: args(index, classes[mine[index].worker]),
                runtime=runtime,
                resources=resources,
                sink=sink,
                deadline=config.placement.deadline,
            )

        text = config.model_dump_json()
        train = await cluster(SimulatedLearner, lambda _, hardware_class: (text, hardware_class))
        generate = await cluster(SimulatedGenerator, lambda index, hardware_class: (text, index, hardware_class))
        hosts = await cluster(SimulatedEnvHost, lambda index, _: (PARTS, [text, str(index)]))
        return JobWorkers(train.handles[0], generate.handles, hosts.handles, hosts.restart)

    def _cost(self, seconds: float, rewards: list[RewardStats]) -> float:
        hours = seconds / 3600.0
        pools = sum(hours * pool.devices * hardware(pool.hardware).cost for pool in self._config.pools.values())
        return pools + sum(stats.cost for stats in rewards)


@contextmanager
def _little_garbage_collection() -> Iterator[None]:
    """A simulated run makes many small objects and few cycles: the collector's usual thresholds cost a third of it."""
    thresholds = gc.get_threshold()
    gc.set_threshold(100_000, 50, 50)
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
