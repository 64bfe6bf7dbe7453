"""A whole run on a runtime of the caller's choice: a Job and the workers of the three roles around it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import msgspec

from rollart.config.config import Config
from rollart.control_plane.env_host import EnvHost
from rollart.control_plane.job import Job, JobHooks, JobResult
from rollart.control_plane.job_state import JobState
from rollart.control_plane.wiring import JobWorkers
from rollart.data_plane.generation.worker import Generator
from rollart.data_plane.training.worker import Learner
from rollart.events import Event, EventSink, MemorySink, Tee
from rollart.runtime.runtime import Placement, Runtime, WorkerHandle, pool_resource
from rollart.types import TrainBatch

POOL = "local"
PARTS = "rollart.control_plane.domain_parts:build_parts"
SECONDS = 240.0
"""Deadline of each placement and of the run, many times what they take; who waits for whom is in the error."""


class Record(msgspec.Struct):
    """What happened in a run."""

    batches: list[TrainBatch]
    events: list[Event]
    result: JobResult

    def of(self, kind: type) -> list[Any]:
        """The events of one type."""
        return [event for event in self.events if isinstance(event, kind)]

    @property
    def weights(self) -> bytes:
        """``model.safetensors`` of the last checkpoint."""
        return (self.result.checkpoint / "model.safetensors").read_bytes()


def store_of(folder: Path) -> tuple[str, str]:
    """Name of the run in the weight store, and the folder for weights that do not fit into shared memory."""
    return f"test-{os.getpid()}-{folder.name[:40]}", str(folder / "weights")


def play(
    config: Config,
    folder: Path,
    runtime: Runtime,
    *,
    sink: EventSink | None = None,
    learner: type[Learner] = Learner,
    generator: type[Generator] = Generator,
) -> Record:
    """Run a configuration; ends the runtime.

    Args:
        config: What to run.
        folder: The run folder, new or empty.
        runtime: Where workers live.
        sink: Gets every event besides the record.
        learner, generator: Worker classes that watch what they do.
    """
    return asyncio.run(_play(config, folder, runtime, sink, learner, generator))


async def _play(
    config: Config,
    folder: Path,
    runtime: Runtime,
    sink: EventSink | None,
    learner: type[Learner],
    generator: type[Generator],
) -> Record:
    async def spawn(worker: type, role: str, number: int, *args: Any) -> WorkerHandle:
        place = Placement(f"{role}-{number}", role, POOL, "CPU", {pool_resource(POOL): 1.0})
        return await runtime.spawn(worker, place, args, SECONDS)

    memory = MemorySink()
    batches: list[TrainBatch] = []
    text, store = config.model_dump_json(), store_of(folder)
    try:
        trainer = await spawn(learner, "train", 0, text, str(folder / "model"), *store)
        model = await trainer.call("prepare", timeout=SECONDS)
        engines = [spawn(generator, "generate", n, text, model, n, *store) for n in range(config.engine.count)]

        def host(number: int) -> Coroutine[Any, Any, WorkerHandle]:
            return spawn(EnvHost, "environment", number, PARTS, [text, model])

        hosts = [host(number) for number in range(config.rollout.hosts)]
        placed = await asyncio.gather(*engines, *hosts)
        workers = JobWorkers(trainer, placed[: len(engines)], placed[len(engines) :], host)
        hooks = JobHooks(batches.append, lambda index: None)
        events = memory if sink is None else Tee(memory, sink)
        job = Job(config, workers, {"default": "CPU"}, folder, events, hooks, JobState())
        try:
            async with asyncio.timeout(SECONDS):
                result = await job.run()
        except TimeoutError as error:
            raise AssertionError(f"no end after {SECONDS} s; who waits for whom:\n{job.wait_graph()}") from error
    finally:
        await runtime.stop()
    return Record(batches, memory.events, result)
