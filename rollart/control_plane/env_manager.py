"""The EnvManager: one light controller for one live environment, an asyncio task.

``reset -> (generate -> step)* -> score``. It holds the trajectory's token spans, so it is what survives an
engine: when an engine does not hold the session (``miss``) it sends the whole history. A fault of the
environment, the rendering or the reward ends this trajectory alone, typed; nothing here touches its
siblings.

It ends in exactly one of: a scored :class:`Trajectory`, an :class:`EpisodeFailure`, or
:class:`Cancelled`. Created and awaited by the EnvHost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeVar

import msgspec

from rollart.config.domains import DomainConfig
from rollart.data_plane.environment.env import Observation, StepResult
from rollart.data_plane.rendering.renderer import Renderer, RenderingError
from rollart.types import (
    HASH_START,
    EpisodeFailure,
    EpisodeSpec,
    FailureKind,
    FinishReason,
    GenerationRequest,
    GenerationResult,
    Limit,
    ResultStatus,
    SamplingParams,
    Score,
    Segment,
    Span,
    Trajectory,
    TrajectoryId,
    Turn,
    derive_seed,
    join,
    rolling_hash,
)

T = TypeVar("T")


class Session(Protocol):
    """One live environment with deadlines (:mod:`rollart.data_plane.environment`)."""

    async def reset(self, seed: int, task: int) -> Observation: ...
    async def step(self, action: str) -> StepResult: ...
    async def random_action(self, seed: int) -> str: ...
    async def close(self) -> None: ...


class Scorer(Protocol):
    """Scores a finished trajectory; raises a typed fault, never returns a 0 for one."""

    async def score(self, trajectory: Trajectory, success: bool | None) -> Score: ...


class DomainParts(msgspec.Struct, frozen=True):
    """What an EnvManager needs of its domain."""

    config: DomainConfig
    open_session: Callable[[EpisodeSpec], Session]
    renderer: Renderer
    scorer: Scorer
    faults: tuple[type[Exception], ...] = ()
    """Exception types with a ``kind`` that session and scorer raise."""


class HostParts(msgspec.Struct, frozen=True):
    """What an environment host needs: the parts of its domains, and how to free what they share.

    Attributes:
        stages: Whether an episode that has been played asks the control plane before it is scored, because others may
            have to finish first (:mod:`rollart.control_plane.stages`).
    """

    domains: dict[str, DomainParts]
    close: Callable[[], Awaitable[None]]
    stages: bool = False


class Cancelled(msgspec.Struct, frozen=True):
    """A cancelled trajectory has freed its environment."""

    id: TrajectoryId
    generated_tokens: int


Ending = Trajectory | EpisodeFailure | Cancelled


class HostPort(Protocol):
    """How what an EnvManager asks leaves the host; the answer comes with the host's next inbound batch."""

    def generate(self, request: GenerationRequest) -> asyncio.Future[GenerationResult]: ...

    def played(self, trajectory: TrajectoryId) -> asyncio.Future[None] | None:
        """The episode has been played; what to wait for before it is scored, ``None`` if nothing."""


class _Ended(Exception):
    """Ends the episode with a typed failure."""

    def __init__(self, kind: FailureKind, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class EnvManager:
    """See the module docstring."""

    def __init__(self, spec: EpisodeSpec, parts: DomainParts, port: HostPort) -> None:
        self._spec = spec
        self._parts = parts
        self._port = port
        self._turns: list[Turn] = []
        self._spans: list[Span] = []
        self._length = 0
        self._hash = HASH_START
        self._generated = 0
        self._cancelled = False
        self._awaits_engine = False
        self.task: asyncio.Task[Ending] | None = None
        self._seconds = {"reset": 0.0, "step": 0.0, "generate": 0.0, "reward": 0.0}
        self._faults: tuple[type[Exception], ...] = (_Ended, RenderingError, *parts.faults)
        config = parts.config
        self._sampling = SamplingParams(
            max_new_tokens=config.max_new_tokens,
            temperature=0.0 if spec.greedy else config.temperature,
            top_p=config.top_p,
            top_k=config.top_k,
            stop_token_ids=parts.renderer.stop_token_ids,
        )

    def start(self) -> asyncio.Task[Ending]:
        self.task = asyncio.get_running_loop().create_task(self._run(), name=f"env-manager {self._spec.id}")
        return self.task

    def cancel(self) -> None:
        """End as cancelled. While an engine works for it, that is when the engine's (aborted) answer arrives."""
        self._cancelled = True
        if self.task is not None and not self._awaits_engine:
            self.task.cancel()

    async def _run(self) -> Ending:
        session = self._parts.open_session(self._spec)
        try:
            return await self._episode(session)
        except asyncio.CancelledError:
            if not self._cancelled:
                raise
            return Cancelled(self._spec.id, self._generated)
        except self._faults as fault:
            kind = getattr(fault, "kind", FailureKind.RENDERING)
            return EpisodeFailure(self._spec.id, kind, str(fault), self._generated)
        finally:
            await session.close()

    async def _episode(self, session: Session) -> Ending:
        observation = await self._timed("reset", session.reset(self._spec.seed, self._spec.id.task))
        if self._spec.random:
            return await self._random_episode(session, observation)
        rendered = self._parts.renderer.begin(observation)
        limit: Limit | None = None
        while True:
            room = self._parts.config.max_context - self._length - len(rendered)
            if room < 1:
                if not self._turns:
                    raise _Ended(
                        FailureKind.PROMPT_TOO_LONG,
                        f"the first prompt has {len(rendered)} tokens, "
                        f"domains.{self._spec.id.domain}.max_context is {self._parts.config.max_context}",
                    )
                limit = Limit.CONTEXT
                break
            result = await self._generate(rendered, room)
            if self._cancelled:
                return Cancelled(self._spec.id, self._generated)
            action_text = self._parts.renderer.parse(result.action)
            step = await self._timed("step", session.step(action_text))
            self._record(rendered, result, _text(observation), action_text, step[1])
            observation, _, terminated, truncated, info = step
            if terminated or truncated or len(self._turns) >= self._parts.config.max_turns:
                limit = None if terminated else Limit.ENVIRONMENT if truncated else Limit.TURNS
                break
            stopped = result.finish_reason is FinishReason.STOP
            rendered = self._parts.renderer.observe(observation, stopped=stopped)
        return await self._score(limit, info)

    async def _generate(self, rendered: Span, room: int) -> GenerationResult:
        sampling = self._sampling
        if room < sampling.max_new_tokens:
            sampling = msgspec.structs.replace(sampling, max_new_tokens=room)
        spec, turn = self._spec, len(self._turns)
        request = GenerationRequest(spec.id, turn, 0, self._length, self._hash, rendered, sampling)
        result = await self._timed("generate", self._ask(request))
        while result.status is ResultStatus.MISS and not self._cancelled:
            whole = join([*self._spans, rendered])
            request = GenerationRequest(spec.id, turn, request.attempt + 1, 0, HASH_START, whole, sampling)
            result = await self._timed("generate", self._ask(request))
        self._generated += len(result.action)
        if self._cancelled:
            return result
        if result.status is ResultStatus.REJECTED:
            raise _Ended(FailureKind.GENERATION, result.error)
        if result.finish_reason is FinishReason.ABORT or len(result.action) == 0:
            raise _Ended(FailureKind.GENERATION, f"turn {turn} was aborted by engine {result.engine.engine}")
        self._spans += (rendered, result.action)
        self._length += len(rendered) + len(result.action)
        # As the engine hashes it: over the spans that travelled, which a re-sent history makes one span.
        self._hash = rolling_hash(rolling_hash(request.prefix_hash, request.new), result.action)
        return result

    async def _ask(self, request: GenerationRequest) -> GenerationResult:
        # No deadline of its own: the LLMProxy answers past engine.answer_timeout, and what a request waits at its gate
        # is no fault of the episode; the deadline of an update or the end of an evaluation bounds it.
        self._awaits_engine = True
        try:
            return await self._port.generate(request)
        finally:
            self._awaits_engine = False

    def _record(self, rendered: Span, result: GenerationResult, seen: str, said: str, reward: float) -> None:
        turn = Turn(rendered, result.action, result.versions, result.finish_reason, float(reward), seen, said)
        self._turns.append(turn)

    async def _score(self, limit: Limit | None, info: dict[str, Any]) -> Trajectory:
        success = info.get("success")
        trajectory = Trajectory(
            id=self._spec.id,
            seed=self._spec.seed,
            segments=(Segment(tuple(self._turns)),),
            limit=limit,
            metrics={name: float(value) for name, value in info.get("metrics", {}).items()},
            seconds=self._seconds,
        )
        verdict = None if success is None else bool(success)
        if (permit := self._port.played(self._spec.id)) is not None:
            await permit
        score = await self._timed("reward", self._parts.scorer.score(trajectory, verdict))
        return msgspec.structs.replace(trajectory, score=score)

    async def _random_episode(self, session: Session, observation: Observation) -> Trajectory:
        """Play with uniformly random valid actions; no tokens, for the random policy's success."""
        while True:
            action = await session.random_action(derive_seed(self._spec.seed, "random", len(self._turns)))
            seen = _text(observation)
            observation, reward, terminated, truncated, info = await self._timed("step", session.step(action))
            empty = join([])
            self._turns.append(Turn(empty, empty, (), FinishReason.STOP, float(reward), seen, action))
            if terminated or truncated or len(self._turns) >= self._parts.config.max_turns:
                return await self._score(None if terminated else Limit.TURNS, info)

    async def _timed(self, part: str, work: Awaitable[T]) -> T:
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            return await work
        finally:
            self._seconds[part] += loop.time() - began


def _text(observation: Observation) -> str:
    if isinstance(observation, str):
        return observation
    if isinstance(observation, list):
        return "\n".join(message["content"] for message in observation)
    return ""
