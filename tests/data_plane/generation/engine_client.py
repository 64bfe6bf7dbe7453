"""A minimal client of an engine, as the tests of the conformance suite use it: histories, turns, waiting."""

from __future__ import annotations

import asyncio

from rollart.data_plane.generation.engine import Engine
from rollart.types import (
    HASH_START,
    GenerationRequest,
    GenerationResult,
    SamplingParams,
    Span,
    TrajectoryId,
    join,
    rolling_hash,
)

DEADLINE = 60.0
"""Seconds (of the loop) that only a hang reaches."""


class Episode:
    """A trajectory as its client knows it."""

    def __init__(self, member: int, task: int = 0) -> None:
        self.id = TrajectoryId("lake", task, task, member)
        self.spans: list[Span] = []
        self.turn = 0
        self.hash = HASH_START

    @property
    def history(self) -> Span:
        return join(self.spans)

    def request(self, new: Span, sampling: SamplingParams, attempt: int = 0) -> GenerationRequest:
        """The next turn's request, on top of the session."""
        length = sum(map(len, self.spans))
        return GenerationRequest(self.id, self.turn, attempt, length, self.hash, new, sampling)

    def resend(self, new: Span, sampling: SamplingParams, attempt: int = 1) -> GenerationRequest:
        """The same, with the full history."""
        whole = join([*self.spans, new])
        return GenerationRequest(self.id, self.turn, attempt, 0, HASH_START, whole, sampling)

    def take(self, request: GenerationRequest, result: GenerationResult) -> None:
        """The turn is over: history and hash go on with the spans that travelled."""
        if request.prefix_length == 0:
            self.spans = []
        self.spans += [request.new, result.action]
        self.hash = rolling_hash(rolling_hash(request.prefix_hash, request.new), result.action)
        self.turn += 1


class Client:
    """Submits to an engine and waits for answers."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    async def answers(self, count: int) -> list[GenerationResult]:
        """The next ``count`` answers, by (trajectory, turn, attempt)."""
        answers: list[GenerationResult] = []
        async with asyncio.timeout(DEADLINE):
            while len(answers) < count:
                answers += await self.engine.results(DEADLINE)
        assert len(answers) == count
        return sorted(answers, key=lambda answer: (answer.trajectory, answer.turn, answer.attempt))

    async def ask(self, *requests: GenerationRequest) -> list[GenerationResult]:
        """Submit, and wait for all answers, in the order of the requests."""
        self.engine.submit(requests)
        found = {(a.trajectory, a.turn, a.attempt): a for a in await self.answers(len(requests))}
        return [found[request.trajectory, request.turn, request.attempt] for request in requests]

    async def one(self, request: GenerationRequest) -> GenerationResult:
        return (await self.ask(request))[0]

    async def play(self, episode: Episode, new: Span, sampling: SamplingParams) -> GenerationResult:
        """One turn that must be done."""
        request = episode.request(new, sampling)
        result = await self.one(request)
        assert result.status == "done", result
        episode.take(request, result)
        return result
