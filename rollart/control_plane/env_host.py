"""The environment host: one process, one event loop, hundreds to thousands of EnvManagers.

Between it and the control plane messages travel in batches: ``post`` brings episodes to start, answers
of engines and cancellations; ``collect`` is a long poll that returns requests, endings and nothing else.
Exactly one ending is reported for each started episode. Torch is never imported here.
"""

from __future__ import annotations

import asyncio
import importlib
from functools import partial

import msgspec

from rollart.control_plane.env_manager import Cancelled, Ending, EnvManager, HostParts
from rollart.data_plane.worker import Environment
from rollart.runtime.long_poll import LongPoll
from rollart.types import (
    EpisodeFailure,
    EpisodeSpec,
    FailureKind,
    GenerationRequest,
    GenerationResult,
    Purpose,
    Trajectory,
    TrajectoryId,
)


class HostReport(msgspec.Struct, frozen=True):
    """What a host has to say since the last ``collect``."""

    requests: list[GenerationRequest] = []
    finished: list[Trajectory] = []
    failures: list[EpisodeFailure] = []
    cancelled: list[Cancelled] = []
    played: list[TrajectoryId] = []
    """Episodes that wait for the permission to be scored."""


class EnvHost(Environment):
    """See the module docstring.

    Args:
        parts_factory: ``module:function`` that returns the :class:`HostParts`.
        arguments: What the function is called with (JSON of the configuration, the model folder, ...).
    """

    def __init__(self, parts_factory: str, arguments: list[str]) -> None:
        super().__init__()
        module, _, name = parts_factory.partition(":")
        parts: HostParts = getattr(importlib.import_module(module), name)(*arguments)
        self._parts = parts
        self._managers: dict[TrajectoryId, EnvManager] = {}
        self._answers: dict[TrajectoryId, asyncio.Future[GenerationResult]] = {}
        self._permits: dict[TrajectoryId, asyncio.Future[None]] = {}
        self._played: list[TrajectoryId] = []
        self._requests: list[GenerationRequest] = []
        self._endings: list[Ending] = []
        self._news = LongPoll()

    async def post(
        self,
        specs: list[EpisodeSpec],
        results: list[GenerationResult],
        cancels: list[TrajectoryId],
        permits: list[TrajectoryId],
    ) -> None:
        """Start episodes, deliver answers, cancel episodes, let played ones be scored.

        Unknown ids have ended already and are ignored.
        """
        for spec in specs:
            manager = EnvManager(spec, self._parts.domains[spec.id.domain], self)
            self._managers[spec.id] = manager
            manager.start().add_done_callback(partial(self._ended, spec))
        for result in results:
            answer = self._answers.pop(result.trajectory, None)
            if answer is not None and not answer.done():
                answer.set_result(result)
        for trajectory in cancels:
            if (running := self._managers.get(trajectory)) is not None:
                running.cancel()
        for trajectory in permits:
            permit = self._permits.pop(trajectory, None)
            if permit is not None and not permit.done():
                permit.set_result(None)

    async def collect(self, max_wait: float) -> HostReport:
        """Everything since the last call; waits up to ``max_wait`` seconds for the first item."""
        if not await self._news.wait(max_wait):
            return HostReport()
        requests, self._requests = self._requests, []
        endings, self._endings = self._endings, []
        played, self._played = self._played, []
        return HostReport(
            requests,
            [item for item in endings if isinstance(item, Trajectory)],
            [item for item in endings if isinstance(item, EpisodeFailure)],
            [item for item in endings if isinstance(item, Cancelled)],
            played,
        )

    def generate(self, request: GenerationRequest) -> asyncio.Future[GenerationResult]:
        """The port of the EnvManagers: queue a request, answered through ``post``."""
        answer: asyncio.Future[GenerationResult] = asyncio.get_running_loop().create_future()
        self._answers[request.trajectory] = answer
        self._requests.append(request)
        self._news.set()
        return answer

    def played(self, trajectory: TrajectoryId) -> asyncio.Future[None] | None:
        """The port of the EnvManagers: ask for the permission to score, if the run has stages."""
        if not self._parts.stages or trajectory.purpose is Purpose.EVAL:
            return None
        permit: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._permits[trajectory] = permit
        self._played.append(trajectory)
        self._news.set()
        return permit

    async def stop(self) -> None:
        """Cancel what is running and wait until every environment is closed."""
        tasks = [manager.task for manager in self._managers.values() if manager.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._parts.close()

    def _ended(self, spec: EpisodeSpec, task: asyncio.Task[Ending]) -> None:
        self._managers.pop(spec.id, None)
        self._answers.pop(spec.id, None)
        self._permits.pop(spec.id, None)
        ending: Ending
        if task.cancelled():
            # Not by us (that ends as Cancelled, or the host is stopping): user code raised it by itself.
            ending = EpisodeFailure(spec.id, FailureKind.ENVIRONMENT_CRASH, "CancelledError out of the environment")
        elif (error := task.exception()) is not None:
            # A fault that nothing typed: still this trajectory's alone, never its siblings'.
            ending = EpisodeFailure(spec.id, FailureKind.ENVIRONMENT_CRASH, f"{type(error).__name__}: {error}")
        else:
            ending = task.result()
        self._endings.append(ending)
        self._news.set()
