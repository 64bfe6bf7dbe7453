"""One EnvManager against a port that plays the engine: histories, misses, limits, faults, cancellation."""

from __future__ import annotations

import asyncio
from typing import Any

from rollart.config.domains import DomainConfig
from rollart.control_plane.env_manager import Cancelled, DomainParts, EnvManager
from rollart.data_plane.environment.env import Observation, StepResult
from rollart.data_plane.environment.session import EnvironmentFailure
from rollart.data_plane.rendering.lengths import LengthRenderer
from rollart.data_plane.reward.score import EnvironmentScorer
from rollart.types import (
    HASH_START,
    EngineAddress,
    EpisodeFailure,
    EpisodeSpec,
    FailureKind,
    FinishReason,
    GenerationRequest,
    GenerationResult,
    LengthSpan,
    Limit,
    ResultStatus,
    Trajectory,
    TrajectoryId,
    VersionRun,
    rolling_hash,
)

SPEC = EpisodeSpec(TrajectoryId("d", 0, 0, 0), 7)


class Counter:
    """Three steps of one token each; ``fail_at`` raises a typed fault."""

    def __init__(self, fail_at: int = -1, hang_at: int = -1) -> None:
        self.steps = 0
        self.closed = 0
        self.waiting = asyncio.Event()
        self._fail_at = fail_at
        self._hang_at = hang_at

    async def reset(self, seed: int, task: int) -> Observation:
        return LengthSpan(5)

    async def step(self, action: str) -> StepResult:
        if self.steps == self._fail_at:
            raise EnvironmentFailure(FailureKind.STEP_ERROR, "broken")
        if self.steps == self._hang_at:
            self.waiting.set()
            await asyncio.get_running_loop().create_future()
        self.steps += 1
        return LengthSpan(2), 1.0, self.steps == 3, False, {"success": True}

    async def random_action(self, seed: int) -> str:
        return ""

    async def close(self) -> None:
        self.closed += 1


class Port:
    """Keeps one session as an engine does, and forgets it before the turns in ``forget``."""

    def __init__(self, forget: tuple[int, ...] = (), hold: bool = False) -> None:
        self.requests: list[GenerationRequest] = []
        self._forget = set(forget)
        self._hold = hold
        self._length, self._hash = 0, HASH_START
        self.held: list[asyncio.Future[GenerationResult]] = []
        self.asked = asyncio.Event()

    def played(self, trajectory: TrajectoryId) -> None:
        """Scored at once."""

    def generate(self, request: GenerationRequest) -> asyncio.Future[GenerationResult]:
        self.requests.append(request)
        answer: asyncio.Future[GenerationResult] = asyncio.get_running_loop().create_future()
        if self._hold:
            self.held.append(answer)
            self.asked.set()
            return answer
        if request.turn in self._forget:
            self._forget.discard(request.turn)
            self._length, self._hash = 0, HASH_START
        if request.prefix_length == 0:
            self._length, self._hash = 0, HASH_START
        if (request.prefix_length, request.prefix_hash) != (self._length, self._hash):
            answer.set_result(reply(request, ResultStatus.MISS, 0))
            return answer
        action = LengthSpan(3)
        self._hash = rolling_hash(rolling_hash(self._hash, request.new), action)
        self._length += len(request.new) + len(action)
        answer.set_result(reply(request, ResultStatus.DONE, len(action)))
        return answer


def reply(
    request: GenerationRequest, status: ResultStatus, tokens: int, reason: FinishReason = FinishReason.STOP
) -> Any:
    versions = (VersionRun(4, tokens),) if tokens else ()
    return GenerationResult(
        request.trajectory,
        request.turn,
        request.attempt,
        EngineAddress(0),
        status,
        LengthSpan(tokens),
        versions,
        reason,
    )


def parts(session: Counter, **settings: Any) -> DomainParts:
    config = DomainConfig(env="emulated", **{"max_context": 64, **settings})
    return DomainParts(config, lambda spec: session, LengthRenderer(), EnvironmentScorer(), (EnvironmentFailure,))


def play(session: Counter, port: Port, **settings: Any) -> Any:
    async def run() -> Any:
        return await EnvManager(SPEC, parts(session, **settings), port).start()

    return asyncio.run(run())


def test_an_episode_becomes_a_scored_trajectory() -> None:
    session = Counter()
    ending = play(session, Port())
    assert isinstance(ending, Trajectory)
    assert [len(turn.observation) for turn in ending.turns()] == [5, 2, 2]
    assert ending.score is not None
    assert (ending.score.value, ending.score.success, ending.limit, ending.start_version) == (3.0, True, None, 4)
    assert session.closed == 1


def test_a_miss_is_answered_by_the_whole_history_once_and_the_session_goes_on() -> None:
    port = Port(forget=(1,))
    ending = play(Counter(), port)
    assert isinstance(ending, Trajectory)
    sent = [(request.turn, request.attempt, request.prefix_length, len(request.new)) for request in port.requests]
    assert sent == [(0, 0, 0, 5), (1, 0, 8, 2), (1, 1, 0, 10), (2, 0, 13, 2)]
    assert [len(turn.observation) for turn in ending.turns()] == [5, 2, 2]


def test_limits_cut_the_trajectory_and_are_named() -> None:
    assert play(Counter(), Port(), max_turns=2).limit is Limit.TURNS
    assert play(Counter(), Port(), max_context=11).limit is Limit.CONTEXT
    too_long = play(Counter(), Port(), max_context=8, system_prompt="")
    assert isinstance(too_long, Trajectory), "5 tokens of prompt leave room for 3"


def test_a_fault_ends_this_trajectory_typed_and_closes_its_environment() -> None:
    session = Counter(fail_at=1)
    ending = play(session, Port())
    assert ending == EpisodeFailure(SPEC.id, FailureKind.STEP_ERROR, "broken", 6)
    assert session.closed == 1


def test_cancelled_in_a_step_it_ends_at_once() -> None:
    session = Counter(hang_at=0)

    async def run() -> Any:
        manager = EnvManager(SPEC, parts(session), Port())
        task = manager.start()
        await session.waiting.wait()
        manager.cancel()
        return await task

    assert asyncio.run(run()) == Cancelled(SPEC.id, 3)
    assert session.closed == 1


def test_cancelled_while_an_engine_works_it_waits_for_the_partial_tokens() -> None:
    session, port = Counter(), Port(hold=True)

    async def run() -> Any:
        manager = EnvManager(SPEC, parts(session), port)
        task = manager.start()
        await port.asked.wait()
        manager.cancel()
        await asyncio.sleep(0)
        assert not task.done()
        port.held[0].set_result(reply(port.requests[0], ResultStatus.DONE, 2, FinishReason.ABORT))
        return await task

    assert asyncio.run(run()) == Cancelled(SPEC.id, 2)
    assert session.closed == 1
