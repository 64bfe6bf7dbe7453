"""What a call to a worker costs on each runtime, and why messages travel in batches.

Run from the repository's root::

    python -m benchmarks.runtime                   # both runtimes
    python -m benchmarks.runtime --runtime in_process

Three patterns, each through the real handle, codec and deadline: one call after the other; many calls at
once; and the control plane's own pattern, a submitter that posts generation requests in batches while a
long poll brings the answers back. ``gain`` is messages per call of the first pattern in the same time: what
batching buys. Rates are of wall time and depend on the machine and its load; the gain, and the CPU time of this
process for one message there and back, depend on them less.
"""

from __future__ import annotations

import argparse
import asyncio
import time

import numpy as np

from rollart.config.resources import PoolConfig
from rollart.runtime.in_process import InProcessRuntime
from rollart.runtime.ray import RayRuntime
from rollart.runtime.runtime import Placement, Runtime, WorkerHandle, pool_resource
from rollart.types import (
    EngineAddress,
    GenerationRequest,
    GenerationResult,
    ResultStatus,
    SamplingParams,
    TokenSpan,
    TrajectoryId,
)

DEADLINE = 120.0
CONCURRENT = 64
BATCH = 200
"""Messages in one call: 200 environments that took their turn at about the same time."""
TOKENS = 40
"""New tokens of one message."""


class Answerer:
    """Answers each request at once with a result of the same size."""

    def __init__(self) -> None:
        self._answers: list[GenerationResult] = []
        self._news = asyncio.Event()

    async def nothing(self) -> None:
        """The cheapest call."""

    async def post(self, requests: list[GenerationRequest]) -> None:
        """Take a batch of requests."""
        for request in requests:
            self._answers.append(
                GenerationResult(request.trajectory, request.turn, 0, EngineAddress(0), ResultStatus.DONE, request.new)
            )
        self._news.set()

    async def results(self, max_wait: float) -> list[GenerationResult]:
        """The long poll."""
        if not self._answers:
            self._news.clear()
            try:
                async with asyncio.timeout(max_wait):
                    await self._news.wait()
            except TimeoutError:
                return []
        answers, self._answers = self._answers, []
        return answers


async def one_by_one(handle: WorkerHandle, calls: int) -> float:
    """Calls a second, each awaited before the next."""
    begin = time.perf_counter()
    for _ in range(calls):
        await handle.call("nothing", timeout=DEADLINE)
    return calls / (time.perf_counter() - begin)


async def at_once(handle: WorkerHandle, calls: int) -> float:
    """Calls a second with many in flight."""

    async def caller() -> None:
        for _ in range(calls // CONCURRENT):
            await handle.call("nothing", timeout=DEADLINE)

    begin = time.perf_counter()
    await asyncio.gather(*(caller() for _ in range(CONCURRENT)))
    return calls / (time.perf_counter() - begin)


async def batched(handle: WorkerHandle, batches: int) -> tuple[float, float]:
    """Messages a second, there and back, posted in batches and collected by a long poll; CPU seconds of one."""
    tokens = TokenSpan.of(np.arange(TOKENS), np.zeros(TOKENS))
    requests = [
        GenerationRequest(TrajectoryId("lake", i, i, 0), 3, 0, 200, 17, tokens, SamplingParams(8)) for i in range(BATCH)
    ]

    async def submit() -> None:
        for _ in range(batches):
            await handle.call("post", requests, timeout=DEADLINE)

    async def collect() -> None:
        received = 0
        while received < batches * BATCH:
            received += len(await handle.call("results", 5.0, timeout=DEADLINE))

    begin, cpu = time.perf_counter(), time.process_time()
    async with asyncio.TaskGroup() as both:
        both.create_task(submit())
        both.create_task(collect())
    messages = batches * BATCH
    return messages / (time.perf_counter() - begin), (time.process_time() - cpu) / messages


async def measure(name: str, runtime: Runtime, scale: int) -> None:
    """Print the line of one runtime."""
    placement = Placement("answerer", "benchmark", "local", "CPU", {pool_resource("local"): 1.0})
    handle = await runtime.spawn(Answerer, placement, (), DEADLINE)
    await one_by_one(handle, 100)
    single = await one_by_one(handle, 300 * scale)
    many = await at_once(handle, 1024 * scale)
    messages, cpu = await batched(handle, 50 * scale)
    rates = f"{single:>10,.0f} {many:>12,.0f} {messages:>12,.0f}"
    print(f"{name:<12} {rates} {messages / single:>6.0f} {cpu * 1e6:>16.1f}", flush=True)
    await runtime.stop()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="cost of calls to workers")
    parser.add_argument("--runtime", choices=["in_process", "ray", "both"], default="both")
    parser.add_argument("--scale", type=int, default=4, help="multiplies the number of calls")
    options = parser.parse_args()
    columns = f"{'calls/s':>10} {f'{CONCURRENT} at once':>12} {'messages/s':>12} {'gain':>6} {'CPU us / message':>16}"
    print(f"{'runtime':<12} {columns}")
    if options.runtime in ("in_process", "both"):
        asyncio.run(measure("in process", InProcessRuntime(), options.scale))
    if options.runtime in ("ray", "both"):
        runtime = RayRuntime.start({"local": PoolConfig(devices=1)})
        asyncio.run(measure("ray", runtime, options.scale))


if __name__ == "__main__":
    # Under its import path, so that a worker process can import it too.
    from benchmarks.runtime import main as imported_main

    imported_main()
