"""Starts a run: the runtime, the workers of the roles, the Job; and ends all of it, whatever happens.

The order is the paper's: the resource manager binds workers to pools, the Clusters place them, the control
plane starts trajectories. Whatever ends it, workers are stopped and the weight store is swept; what Ctrl-C does
meanwhile is in :mod:`rollart.cli.stopping`. Called by ``rollart train`` and ``rollart eval``.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import tempfile
import time
from pathlib import Path
from typing import cast

from rollart.cli.run_folder import EVENTS
from rollart.cli.stopping import Stopping, terminable
from rollart.config.config import Config
from rollart.control_plane.checkpoints import resumable
from rollart.control_plane.env_host import EnvHost
from rollart.control_plane.evaluation_job import EvaluationJob
from rollart.control_plane.job import Job, JobHooks, JobResult
from rollart.control_plane.job_state import JobState
from rollart.control_plane.supervision import supervised
from rollart.control_plane.waits import Waits
from rollart.control_plane.watchdog import wait_graph, watch
from rollart.control_plane.watched import WatchedHandle
from rollart.control_plane.wiring import JobWorkers
from rollart.data_plane.cluster import Cluster
from rollart.data_plane.generation.worker import Generator
from rollart.data_plane.training.worker import Learner
from rollart.data_plane.weights.shared_memory import SHARED_MEMORY, sweep
from rollart.data_plane.worker import Reward, Worker
from rollart.events import EventLog, EventSink, Tee, WorkerPlaced
from rollart.observability.trajectory_log import TrajectoryLog
from rollart.resource_plane.binding import WorkerRequest
from rollart.resource_plane.job_resources import job_resources
from rollart.resource_plane.planning import worker_requests
from rollart.resource_plane.pools import pools_of
from rollart.resource_plane.resource_manager import ResourceManager
from rollart.runtime.in_process import InProcessRuntime
from rollart.runtime.runtime import Runtime, WorkerHandle, WorkerInfo

GRACE_SECONDS = 2.0
"""What a worker gets to free its resources when the run ends."""

PREPARE_SECONDS = 900.0
"""Deadline for building or finding the model."""

ROLES: dict[str, type[Worker]] = {"train": Learner, "generate": Generator, "environment": EnvHost, "reward": Reward}


def launch(config: Config, folder: Path, sink: EventSink, resume: bool = False) -> JobResult:
    """Run a configuration in its run folder.

    Args:
        config: The validated configuration.
        folder: The run folder, which exists and is held by the caller.
        sink: Gets every event besides the event log.
        resume: Continue from the newest checkpoint in the folder.

    Raises:
        FileNotFoundError, CheckpointError: nothing to resume from, or not with this configuration.
        PlanError, PlacementError, WorkerError, RuntimeError: the first cause of a failed run.
        KeyboardInterrupt: interrupted before it could stop in order.
    """
    start = resumable(folder, config) if resume else JobState()
    with terminable():
        runtime = _runtime(config)
        try:
            return asyncio.run(_run(config, folder, sink, start, runtime))
        except asyncio.CancelledError:
            raise KeyboardInterrupt from None


def evaluate(config: Config, version: int, sink: EventSink) -> None:
    """Play the held-out instances of every domain with the model of ``model.path``; results are events.

    Args:
        config: The validated configuration, with a model to evaluate.
        version: What the records call the weights.
        sink: Gets every event; there is no run folder and no event log.

    Raises:
        PlanError, PlacementError, WorkerError, RuntimeError: the first cause of a failure.
        KeyboardInterrupt: interrupted.
    """
    with terminable():
        runtime = _runtime(config)
        try:
            asyncio.run(_evaluate(config, version, sink, runtime))
        except asyncio.CancelledError:
            raise KeyboardInterrupt from None


async def _evaluate(config: Config, version: int, sink: EventSink, runtime: Runtime) -> None:
    with Stopping() as stopping, tempfile.TemporaryDirectory(prefix="rollart-eval-") as folder:
        async with contextlib.AsyncExitStack() as ending:
            ending.push_async_callback(runtime.stop)
            resources = await ending.enter_async_context(_resources(config, runtime, sink))
            clusters = _Clusters(config, Path(folder), runtime, resources, sink)
            ending.push_async_callback(clusters.stop)
            ending.callback(stopping.over)
            job = EvaluationJob(config, await clusters.create(), sink, version)
            stopping.ask(job)
            await job.run()


def _runtime(config: Config) -> Runtime:
    if config.run.runtime == "in_process":
        return InProcessRuntime()
    from rollart.runtime.ray import RayRuntime

    return RayRuntime.start(config.pools, config.ray)


def _resources(
    config: Config, runtime: Runtime, sink: EventSink
) -> contextlib.AbstractAsyncContextManager[ResourceManager]:
    """The run's resource manager, whose view of the pools is shared by all runs on an existing cluster."""
    name = config.run.name
    if config.run.runtime == "in_process" or config.ray.address is None:
        return job_resources(name, sink)
    from rollart.runtime.ray import RayRuntime

    attach = cast("RayRuntime", runtime).attach
    return job_resources(f"{name}-{secrets.token_hex(4)}", sink, attach, config.placement.deadline)


async def _run(config: Config, folder: Path, sink: EventSink, start: JobState, runtime: Runtime) -> JobResult:
    loop = asyncio.get_running_loop()
    with Stopping() as stopping:
        async with contextlib.AsyncExitStack() as ending:
            ending.push_async_callback(runtime.stop)
            log = EventLog(folder / EVENTS, config.run.name, "driver", loop.time(), time.time(), loop.time)
            ending.callback(log.close)
            events = Tee(log, sink)
            resources = await ending.enter_async_context(_resources(config, runtime, events))
            clusters = _Clusters(config, folder, runtime, resources, events)
            ending.push_async_callback(clusters.stop)
            ending.callback(stopping.over)
            workers = await clusters.create()
            trajectories = TrajectoryLog(folder, config.log.trajectories, config.log.trajectory_batches)
            hooks = JobHooks(trajectories.write, lambda index: log.flush())
            job = Job(config, workers, config.placement.affinity, folder, events, hooks, start)
            stopping.ask(job)
            return await job.run()


class _Clusters:
    """The workers of a run: created in an order that lets hosts and engines find the model."""

    def __init__(
        self, config: Config, folder: Path, runtime: Runtime, resources: ResourceManager, sink: EventSink
    ) -> None:
        self._config = config
        self._folder = folder
        self._runtime = runtime
        self._sink = sink
        self._resources = resources
        self._clusters: list[Cluster] = []
        self._store = (f"{config.run.name}-{os.getpid()}", str(folder / "weights"))

    async def create(self) -> JobWorkers:
        config_json = self._config.model_dump_json()
        await self._resources.declare(pools_of(self._config.pools))
        requests = worker_requests(self._config, {name: role.hardware_affinity for name, role in ROLES.items()})
        # All at once, so that what cannot be placed is refused before anything starts; the Clusters find them bound.
        await self._resources.bind(requests)
        train = await self._cluster("train", requests, config_json, str(self._folder / "model"), *self._store)
        model = await self._prepared(train.handles[0])
        generate = await self._cluster("generate", requests, config_json, model, None, *self._store)
        environment = await self._cluster("environment", requests, _PARTS, [config_json, model])
        await self._rewards_placed([handle.info for handle in environment.handles])
        return JobWorkers(train.handles[0], generate.handles, environment.handles, environment.restart)

    async def _rewards_placed(self, hosts: list[WorkerInfo]) -> None:
        """Record where the rewards are, which have no process of their own and so no Cluster that would."""
        for worker, binding in (await self._resources.bindings()).items():
            if binding.role == Reward.role:
                host = next(info.host for info in hosts if info.pool == binding.pool)
                self._sink.emit(WorkerPlaced(worker, binding.role, binding.pool, binding.hardware_class, host))

    async def _prepared(self, trainer: WorkerHandle) -> str:
        """The model's folder, once the trainer has it; a hub may take its time, and the watchdog says so."""
        waits, stall = Waits(), self._config.run.stall_seconds
        preparing = WatchedHandle(trainer, waits).call("prepare", timeout=PREPARE_SECONDS)
        watchdog = ("watchdog", lambda: watch(waits, lambda: wait_graph(waits, ()), stall, self._sink))
        model: str = await supervised(preparing, [watchdog])
        return model

    async def stop(self) -> None:
        try:
            await asyncio.gather(*(cluster.stop(GRACE_SECONDS) for cluster in self._clusters))
        finally:
            name, fallback = self._store
            sweep(name, SHARED_MEMORY, Path(fallback))

    async def _cluster(self, role: str, requests: list[WorkerRequest], *args: object) -> Cluster:
        """Create a role's Cluster; ``None`` among the arguments stands for the worker's number."""
        cluster = await Cluster.create(
            ROLES[role],
            [request for request in requests if request.role == role],
            lambda index: tuple(index if arg is None else arg for arg in args),
            runtime=self._runtime,
            resources=self._resources,
            sink=self._sink,
            deadline=self._config.placement.deadline,
        )
        self._clusters.append(cluster)
        return cluster


_PARTS = "rollart.control_plane.domain_parts:build_parts"
