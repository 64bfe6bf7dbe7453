"""The LLMProxy with a prefill and a decode engine: one answer to each request, whatever happens between the phases."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
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
    FinishReason,
    GenerationRequest,
    GenerationResult,
    LengthSpan,
    Phase,
    ResultStatus,
    SamplingParams,
    TrajectoryId,
    VersionRun,
)

TRAJECTORY = TrajectoryId("d", 0, 0, 0)
REQUEST = GenerationRequest(TRAJECTORY, 0, 0, 0, HASH_START, LengthSpan(5), SamplingParams(4))
SECONDS = 10.0
"""An engine's time for a phase."""


class Engine(WorkerHandle):
    """Answers each request after :data:`SECONDS`, whether or not it is aborted meanwhile."""

    def __init__(self, number: int, pool: str, status: ResultStatus = ResultStatus.DONE) -> None:
        self.info = WorkerInfo(f"generate-{number}", "generate", pool, "H20", "here", 1)
        self.address = EngineAddress(number)
        self.phases: list[Phase] = []
        self.aborts: list[TrajectoryId] = []
        self.releases: list[TrajectoryId] = []
        self._status = status
        self._answers: asyncio.Queue[GenerationResult] = asyncio.Queue()

    async def call(self, method: str, *args: Any, timeout: float) -> Any:
        if method == "results":
            return [await self._answers.get()]
        requests, aborts, releases = args
        for request in requests:
            self.phases.append(request.phase)
            asyncio.get_running_loop().call_later(SECONDS, self._answers.put_nowait, self._answer(request))
        self.aborts += aborts
        self.releases += releases
        return None

    def _answer(self, request: GenerationRequest) -> GenerationResult:
        computing = request.phase is Phase.PREFILL
        action, runs = (LengthSpan(0), ()) if computing else (LengthSpan(2), (VersionRun(3, 2),))
        result = GenerationResult(request.trajectory, request.turn, 0, self.address, self._status, action, runs)
        assert computing or request.kv_version == (3 if request.phase is Phase.DECODE else -1)
        return GenerationResult(*(getattr(result, name) for name in result.__struct_fields__[:-1]), 3)

    async def stop(self, grace: float) -> None: ...

    async def kill(self) -> None: ...


def play(
    prefill: Engine, decode: Engine, script: Callable[[LLMProxy], Awaitable[None]]
) -> tuple[list[tuple[float, GenerationResult]], LLMProxy]:
    """Submit the request, let the script act, and wait for a while."""
    answers: list[tuple[float, GenerationResult]] = []

    async def run() -> LLMProxy:
        clock = asyncio.get_running_loop().time
        clients = [EngineClient(each, EngineInfo(each.address, 3, "", 1, 1, 100)) for each in (prefill, decode)]
        started: list[tuple[TrajectoryId, int]] = []
        proxy = LLMProxy(
            clients, {}, MemorySink(), Waits(), lambda *seen: started.append(seen), 1000.0, prefill_pools=["p"]
        )

        async def ask() -> None:
            proxy.submit(REQUEST, lambda result: answers.append((clock(), result)))
            await script(proxy)
            await asyncio.sleep(5 * SECONDS)

        await supervised(ask(), proxy.loops())
        assert len(started) <= 1
        return proxy

    return answers, virtual_loop.run(run())


async def nothing(proxy: LLMProxy) -> None: ...


def test_a_request_passes_both_engines_and_is_answered_once() -> None:
    prefill, decode = Engine(0, "p"), Engine(1, "d")
    ((when, result),), proxy = play(prefill, decode, nothing)
    assert (prefill.phases, decode.phases) == ([Phase.PREFILL], [Phase.DECODE])
    assert 2 * SECONDS <= when < 3 * SECONDS
    assert (result.status, len(result.action), result.engine) == (ResultStatus.DONE, 2, decode.address)
    assert (proxy.running, proxy.generated_tokens) == (0, 2)


def test_an_abort_that_comes_too_late_for_the_prefill_ends_the_request_without_a_decode() -> None:
    prefill, decode = Engine(0, "p"), Engine(1, "d")

    async def abort(proxy: LLMProxy) -> None:
        await asyncio.sleep(SECONDS / 2)
        proxy.abort(TRAJECTORY)

    ((_, result),), proxy = play(prefill, decode, abort)
    assert prefill.aborts == [TRAJECTORY]
    assert decode.phases == []
    assert (result.status, result.finish_reason, len(result.action)) == (ResultStatus.DONE, FinishReason.ABORT, 0)
    assert (proxy.running, proxy.sessions) == (0, 0)


def test_an_abort_while_decoding_tells_both_engines() -> None:
    prefill, decode = Engine(0, "p"), Engine(1, "d")

    async def abort(proxy: LLMProxy) -> None:
        await asyncio.sleep(1.5 * SECONDS)
        proxy.abort(TRAJECTORY)

    answers, proxy = play(prefill, decode, abort)
    assert len(answers) == 1
    assert (prefill.aborts, prefill.releases) == ([], [TRAJECTORY])
    assert (decode.aborts, decode.releases) == ([TRAJECTORY], [])
    assert proxy.running == 0


def test_a_miss_of_the_prefill_engine_is_the_answer() -> None:
    prefill, decode = Engine(0, "p", ResultStatus.MISS), Engine(1, "d")
    ((_, result),), _ = play(prefill, decode, nothing)
    assert result.status is ResultStatus.MISS
    assert decode.phases == []
