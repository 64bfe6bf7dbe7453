"""The evaluation job: held-out instances of every domain played once by one model, without training.

The same hosts, LLMProxy and engines as in a run, at fixed weights; the trainer is placed and never
started. Called by ``rollart eval`` through the launch.
"""

from __future__ import annotations

import asyncio

from rollart.config.config import Config
from rollart.control_plane.job import START_SECONDS
from rollart.control_plane.job_state import JobState
from rollart.control_plane.ledger import Ledger
from rollart.control_plane.supervision import supervised
from rollart.control_plane.training_loop import LoopHooks
from rollart.control_plane.waits import Signal, Waits
from rollart.control_plane.watchdog import wait_graph, watch
from rollart.control_plane.watched import watched
from rollart.control_plane.wiring import JobWorkers, Wiring, wire
from rollart.data_plane.generation.engine import EngineInfo
from rollart.events import EventSink


class EvaluationJob:
    """Plays ``evaluation.instances`` instances of each domain.

    Args:
        config: The validated configuration; ``model.path`` is the model that plays.
        workers: Placed and constructed, not started.
        sink: Gets the ``Evaluated`` records of the passes, and alarms.
        version: What the records call the weights.
    """

    def __init__(self, config: Config, workers: JobWorkers, sink: EventSink, version: int) -> None:
        self._config = config
        self._waits = Waits()
        self._workers = watched(workers, self._waits)
        self._sink = sink
        self._version = version
        self._wiring: Wiring | None = None
        self._changed = Signal(self._waits)
        self._task: asyncio.Task[None] | None = None

    def interrupt(self) -> None:
        """Stop now; a pass that was not finished has no result."""
        if self._task is not None:
            self._task.cancel()

    async def run(self) -> None:
        """Play the passes: the random policy's if ``evaluation.random_policy`` asks for it, then the model's.

        Raises:
            asyncio.CancelledError: interrupted.
            WorkerError, WorkerLost, RuntimeError: the first cause of a failure.
        """
        stall = self._config.run.stall_seconds
        watchdog = ("watchdog", lambda: watch(self._waits, self._wait_graph, stall, self._sink))
        self._task = asyncio.ensure_future(supervised(self._run(), [watchdog]))
        await self._task

    async def _run(self) -> None:
        starting = (engine.call("start", timeout=START_SECONDS) for engine in self._workers.engines)
        infos: list[EngineInfo] = list(await asyncio.gather(*starting))
        self._wiring = wiring = wire(
            self._config,
            self._workers,
            infos,
            self._config.placement.affinity,
            JobState(),
            Ledger(self._sink),
            self._sink,
            self._waits,
            self._changed,
            LoopHooks(lambda batch: None, _never_ends, lambda: False),
        )
        self._waits.moved()
        await supervised(self._play(wiring), wiring.loops())

    def _wait_graph(self) -> str:
        return wait_graph(self._waits, [] if self._wiring is None else self._wiring.describe())

    async def _play(self, wiring: Wiring) -> None:
        if self._config.evaluation.random_policy:
            await wiring.evaluation.play(self._version, random=True)
        await wiring.evaluation.play(self._version)


async def _never_ends(index: int) -> bool:
    """No iteration is trained, so none ends."""
    raise RuntimeError(f"iteration {index} ended in an evaluation")
