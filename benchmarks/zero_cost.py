"""Workers that cost nothing, so that a benchmark measures the control plane alone.

The engine answers every request at once with a fixed number of tokens, the environment is a counter, the
renderer hands out prepared tokens, the trainer returns. Everything between them is the product's own code.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import numpy as np

from rollart.config.config import Config
from rollart.control_plane.env_manager import DomainParts, HostParts
from rollart.data_plane.environment.env import Observation, StepResult
from rollart.data_plane.generation.engine import Engine, EngineInfo, EngineStats, UpdateReport
from rollart.data_plane.generation.worker import EngineWorker
from rollart.data_plane.reward.score import EnvironmentScorer
from rollart.data_plane.training.emulated import EmulatedLearner, EmulatedTimes, emulated_manifest
from rollart.data_plane.weights.store import Manifest
from rollart.types import (
    EngineAddress,
    FinishReason,
    GenerationRequest,
    GenerationResult,
    ResultStatus,
    Span,
    TokenSpan,
    TrajectoryId,
    VersionRun,
)

ACTION_TOKENS = 40
OBSERVATION_TOKENS = 40


class ZeroCostEngine(Engine):
    """Answers at once: ``ACTION_TOKENS`` tokens with log-probabilities."""

    def __init__(self, address: EngineAddress) -> None:
        self._address = address
        self._version = 0
        self._checksum = emulated_manifest(0).checksum
        self._action = TokenSpan.of(
            np.arange(ACTION_TOKENS, dtype=np.int32), np.full(ACTION_TOKENS, -1.0, dtype=np.float32)
        )
        self._answers: list[GenerationResult] = []
        self._answered = asyncio.Event()
        self._manifests: dict[int, Manifest] = {}
        self._tokens = 0

    async def start(self) -> EngineInfo:
        return EngineInfo(self._address, self._version, self._checksum, 4096, 4096, 1 << 20)

    def submit(self, requests: Sequence[GenerationRequest]) -> None:
        versions = (VersionRun(self._version, ACTION_TOKENS),)
        self._answers += [
            GenerationResult(
                request.trajectory,
                request.turn,
                request.attempt,
                self._address,
                ResultStatus.DONE,
                self._action,
                versions,
                FinishReason.STOP,
                request.prefix_length,
            )
            for request in requests
        ]
        self._tokens += ACTION_TOKENS * len(requests)
        self._answered.set()

    def abort(self, trajectories: Sequence[TrajectoryId]) -> None: ...

    def release(self, trajectories: Sequence[TrajectoryId]) -> None: ...

    async def results(self, max_wait: float) -> list[GenerationResult]:
        if not self._answers:
            self._answered.clear()
            try:
                async with asyncio.timeout(max_wait):
                    await self._answered.wait()
            except TimeoutError:
                return []
        answers, self._answers = self._answers, []
        return answers

    async def suspend(self) -> None: ...

    async def prefetch(self, manifest: Manifest) -> None:
        self._manifests = {manifest.version: manifest}

    async def update(self, version: int) -> UpdateReport:
        self._version = version
        self._checksum = self._manifests[version].checksum
        return UpdateReport(version, self._checksum, 0.0, (), 0)

    async def resume(self) -> None: ...

    def stats(self) -> EngineStats:
        return EngineStats(generated_tokens=self._tokens)

    async def stop(self) -> None: ...


class ZeroCostGenerator(EngineWorker):
    def __init__(self, number: int) -> None:
        super().__init__(ZeroCostEngine(EngineAddress(number)))


class ZeroCostLearner(EmulatedLearner):
    def __init__(self) -> None:
        super().__init__(0, EmulatedTimes(0.0, 0.0))


class _Session:
    """Counts steps; the last of ``turns`` terminates."""

    def __init__(self, turns: int) -> None:
        self._left = turns

    async def reset(self, seed: int, task: int) -> Observation:
        return "begin"

    async def step(self, action: str) -> StepResult:
        self._left -= 1
        return "next", 0.0, self._left == 0, False, {"success": True}

    async def random_action(self, seed: int) -> str:
        return ""

    async def close(self) -> None: ...


class _Renderer:
    stop_token_ids: tuple[int, ...] = ()
    _span = TokenSpan.of(np.arange(OBSERVATION_TOKENS, dtype=np.int32))

    def begin(self, observation: Observation) -> Span:
        return self._span

    def observe(self, observation: Observation, *, stopped: bool) -> Span:
        return self._span

    def parse(self, action: Span) -> str:
        return "go"

    def decode(self, tokens: Span) -> str:
        return ""


def build_parts(config_json: str) -> HostParts:
    """The parts of every domain of the benchmark's configuration."""
    config = Config.model_validate_json(config_json)

    async def close() -> None: ...

    def session(turns: int) -> Any:
        return lambda spec: _Session(turns)

    parts = {
        name: DomainParts(domain, session(domain.max_turns), _Renderer(), EnvironmentScorer())
        for name, domain in config.domains.items()
    }
    return HostParts(parts, close)
