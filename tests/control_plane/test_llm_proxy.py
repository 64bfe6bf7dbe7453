"""The LLMProxy against an engine that plays dead, in virtual time."""

from __future__ import annotations

import asyncio
from typing import Any

from rollart.control_plane.llm_proxy import EngineClient, LLMProxy
from rollart.control_plane.supervision import supervised
from rollart.control_plane.waits import Waits
from rollart.data_plane.generation.engine import EngineInfo
from rollart.events import MemorySink
from rollart.runtime.runtime import WorkerHandle, WorkerInfo
from rollart.simulation import virtual_loop
from rollart.types import (
    HASH_START,
    EngineAddress,
    GenerationRequest,
    GenerationResult,
    LengthSpan,
    ResultStatus,
    SamplingParams,
    TrajectoryId,
    VersionRun,
)

SECONDS = 100.0
REQUEST = GenerationRequest(TrajectoryId("d", 0, 0, 0), 0, 0, 0, HASH_START, LengthSpan(5), SamplingParams(4))


class LateEngine(WorkerHandle):
    """Answers its polls, and a request only ``late`` seconds after it came."""

    def __init__(self, late: float) -> None:
        self.info = WorkerInfo("generate-0", "generate", "local", "CPU", "here", 1)
        self.aborts: list[TrajectoryId] = []
        self._late = late
        self._due: list[tuple[float, GenerationRequest]] = []

    async def call(self, method: str, *args: Any, timeout: float) -> Any:
        now = asyncio.get_running_loop().time()
        if method == "post":
            requests, aborts, _ = args
            self._due += [(now + self._late, request) for request in requests]
            self.aborts += aborts
            return None
        await asyncio.sleep(args[0])
        due = [request for at, request in self._due if at <= now]
        self._due = [each for each in self._due if each[0] > now]
        return [answer(request) for request in due]

    async def stop(self, grace: float) -> None: ...

    async def kill(self) -> None: ...


def answer(request: GenerationRequest) -> GenerationResult:
    engine, runs = EngineAddress(0), (VersionRun(0, 2),)
    return GenerationResult(request.trajectory, request.turn, 0, engine, ResultStatus.DONE, LengthSpan(2), runs)


def play(engine: LateEngine, seconds: float, gate_opens: float = 0.0) -> tuple[list[tuple[float, Any]], LLMProxy]:
    """Submit one request; the times and the answers that came."""
    answers: list[tuple[float, Any]] = []

    async def run() -> LLMProxy:
        clock = asyncio.get_running_loop().time
        client = EngineClient(engine, EngineInfo(EngineAddress(0), 0, "", 1, 1, 100))
        proxy = LLMProxy([client], {}, MemorySink(), Waits(), lambda trajectory, version: None, SECONDS)

        async def ask() -> None:
            proxy.close_for(REQUEST.trajectory.purpose)
            proxy.submit(REQUEST, lambda result: answers.append((clock(), result)))
            await asyncio.sleep(gate_opens)
            proxy.close_for(None)
            await asyncio.sleep(seconds)

        await supervised(ask(), proxy.loops())
        return proxy

    return answers, virtual_loop.run(run())


def test_a_request_that_its_engine_does_not_answer_is_refused_once_and_its_late_answer_dropped() -> None:
    engine = LateEngine(late=3 * SECONDS)
    ((when, result),), proxy = play(engine, 5 * SECONDS)

    assert SECONDS <= when <= 1.25 * SECONDS
    assert result.status is ResultStatus.REJECTED
    assert result.error == "engine 0 gave no answer in 100 s (engine.answer_timeout)"
    assert engine.aborts == [REQUEST.trajectory]
    assert (proxy.running, proxy.sessions, proxy.dropped_results) == (0, 0, 1)


def test_the_time_at_the_gate_does_not_count() -> None:
    ((when, result),), _ = play(LateEngine(late=0.5 * SECONDS), 2 * SECONDS, gate_opens=5 * SECONDS)

    assert when >= 5.5 * SECONDS
    assert result.status is ResultStatus.DONE
