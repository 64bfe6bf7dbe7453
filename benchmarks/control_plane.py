"""What the control plane costs: CPU per turn in process, and turns per second across Ray.

Run from the repository's root::

    python -m benchmarks.control_plane              # in process
    python -m benchmarks.control_plane --runtime ray

Engine, environment and trainer cost nothing (:mod:`benchmarks.zero_cost`); messages cross by the codec in
both cases, every event is written to an event log on disk, and turn records are on. The limit it is compared
with in the same run is a bare loop that encodes and decodes one request and one result a turn.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from pathlib import Path

from benchmarks.zero_cost import ZeroCostEngine, ZeroCostGenerator, ZeroCostLearner
from rollart import codec
from rollart.config.config import Config
from rollart.control_plane.env_host import EnvHost
from rollart.control_plane.job import Job, JobHooks
from rollart.control_plane.job_state import JobState
from rollart.control_plane.wiring import JobWorkers
from rollart.events import EventLog
from rollart.runtime.in_process import InProcessRuntime
from rollart.runtime.ray import RayRuntime
from rollart.runtime.runtime import Placement, Runtime, WorkerHandle
from rollart.types import (
    HASH_START,
    EngineAddress,
    GenerationRequest,
    GenerationResult,
    SamplingParams,
    TokenSpan,
    TrajectoryId,
)

TURNS = 20


def configuration(iterations: int, environments: int) -> Config:
    group_size = 8
    return Config.model_validate(
        {
            "run": {"iterations": iterations, "alpha": 1},
            "domains": {
                name: {"env": "emulated", "max_turns": TURNS, "max_context": 1 << 20} for name in ("one", "two")
            },
            "rollout": {
                "groups_per_batch": max(2, environments // group_size),
                "group_size": group_size,
                "max_environments": environments,
            },
            "log": {"turns": True},
        }
    )


async def play(runtime: Runtime, config: Config, folder: Path, pool: str) -> tuple[int, float, float]:
    """Run the job; returns turns, wall seconds and CPU seconds of this process."""
    loop = asyncio.get_running_loop()

    async def spawn(worker: type, name: str, *args: object) -> WorkerHandle:
        resources = {f"pool:{pool}": 1.0} if isinstance(runtime, RayRuntime) else {}
        return await runtime.spawn(worker, Placement(name, name, pool, "CPU", resources), args, 60.0)

    async def host(index: int) -> WorkerHandle:
        return await spawn(
            EnvHost, f"environment-{index}", "benchmarks.zero_cost:build_parts", [config.model_dump_json()]
        )

    workers = JobWorkers(
        await spawn(ZeroCostLearner, "train-0"),
        [await spawn(ZeroCostGenerator, "generate-0", 0)],
        [await host(0)],
        host,
    )
    log = EventLog(folder / "events", "benchmark", "driver", loop.time(), time.time(), loop.time)
    hooks = JobHooks(lambda batch: None, lambda index: log.flush())
    job = Job(config, workers, {}, folder, log, hooks, JobState())
    wall, cpu = time.perf_counter(), time.process_time()
    await job.run()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    log.close()
    wiring = job.wiring
    assert wiring is not None
    turns = wiring.proxy.generated_tokens // ACTION
    await runtime.stop()
    return turns, wall, cpu


ACTION = len(ZeroCostEngine(EngineAddress(0))._action)


def bare_codec_seconds(turns: int) -> float:
    """CPU seconds to encode and decode one request and one result for each turn, one at a time."""
    engine = ZeroCostEngine(EngineAddress(0))
    request = GenerationRequest(
        TrajectoryId("one", 0, 0, 0), 1, 0, 80, HASH_START, TokenSpan.of(engine._action.ids), SamplingParams(8)
    )
    engine.submit([request])
    result = engine._answers[0]
    began = time.process_time()
    for _ in range(turns):
        codec.decode(codec.encode(request), GenerationRequest)
        codec.decode(codec.encode(result), GenerationResult)
    return time.process_time() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runtime", choices=["in_process", "ray"], default="in_process")
    parser.add_argument("--environments", type=int, default=200)
    parser.add_argument("--iterations", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    config = configuration(options.iterations, options.environments)
    for _ in range(options.repeats):
        with tempfile.TemporaryDirectory() as folder:
            runtime: Runtime
            pool = next(iter(config.pools))
            runtime = RayRuntime.start(config.pools) if options.runtime == "ray" else InProcessRuntime()
            turns, wall, cpu = asyncio.run(play(runtime, config, Path(folder), pool))
        bare = bare_codec_seconds(turns)
        print(
            f"{options.runtime}: {turns} turns, {turns / wall:,.0f} turns/s, {1e3 * cpu / turns:.3f} ms of this "
            f"process's CPU a turn, {cpu / bare:.1f}x a bare encode-decode loop"
        )


if __name__ == "__main__":
    main()
