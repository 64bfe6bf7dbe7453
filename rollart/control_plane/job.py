"""The Job: one training run, from workers that are placed to the last checkpoint.

It starts the workers, wires the control plane together, runs evaluation and the training loop under
supervision, and sees to it that every started trajectory has an outcome when it ends, however it ends.
Placement is the caller's (it hands over the workers), display and files are the caller's sinks.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from rollart.config.config import Config
from rollart.control_plane.checkpoints import Checkpoints
from rollart.control_plane.job_state import JobState
from rollart.control_plane.ledger import Ledger
from rollart.control_plane.supervision import supervised
from rollart.control_plane.training_loop import LoopHooks
from rollart.control_plane.waits import Signal, Waits
from rollart.control_plane.watchdog import wait_graph, watch
from rollart.control_plane.watched import watched
from rollart.control_plane.wiring import JobWorkers, Wiring, wire
from rollart.data_plane.generation.engine import EngineInfo
from rollart.data_plane.training.trainer import TrainerInfo
from rollart.data_plane.weights.store import Manifest
from rollart.events import EventSink, PoolBusy, RunEnded, RunStarted
from rollart.runtime.runtime import CallTimeout, WorkerError, WorkerLost
from rollart.types import Purpose, TrainBatch

START_SECONDS = 900.0
"""Deadline for loading a model."""

SETTLE_SECONDS = 30.0
"""At the end of a run, how long hosts may take to confirm cancelled trajectories."""

LAST_SAVE_SECONDS = 60.0
"""After a failure, how long the trainer may take to write what it holds."""


class JobHooks(msgspec.Struct, frozen=True):
    """What the caller wants to be told, besides the events.

    Attributes:
        batch_formed: Each batch, before it is trained.
        iteration_ended: After each iteration (flush logs).
    """

    batch_formed: Callable[[TrainBatch], None]
    iteration_ended: Callable[[int], None]


class JobResult(msgspec.Struct, frozen=True):
    """How the run ended.

    Attributes:
        version: k of the final weights W_k.
        interrupted: Whether it was stopped before its last iteration by the user.
        checkpoint: The Hugging Face model folder that was written last.
        train_seconds: Wall time of training over all starts of the run, evaluation not counted.
    """

    version: int
    interrupted: bool
    checkpoint: Path
    train_seconds: float


class Job:
    """See the module docstring.

    Args:
        config: The validated configuration.
        workers: Placed and constructed, not started.
        affinity: Hardware class by domain for generation, ``default`` for the others.
        folder: The run folder; checkpoints go below it.
        sink: Where events go.
        hooks: See :class:`JobHooks`.
        start: Where the run begins: a fresh state, or that of a checkpoint.
    """

    def __init__(
        self,
        config: Config,
        workers: JobWorkers,
        affinity: dict[str, str],
        folder: Path,
        sink: EventSink,
        hooks: JobHooks,
        start: JobState,
    ) -> None:
        self._config = config
        self._waits = Waits()
        self._workers = workers = watched(workers, self._waits)
        self._affinity = affinity
        self._sink = sink
        self._hooks = hooks
        self._start = start
        self._changed = Signal(self._waits)
        self._checkpoints = Checkpoints(folder, config.training.checkpoint, workers.trainer, sink)
        self._ledger = Ledger(sink)
        self.wiring: Wiring | None = None
        """The control plane, once the workers have started."""
        self._training_since: float | None = None
        self._paused_seconds = 0.0
        self._interrupted = False
        self._saved = start.version
        """Newest version that a checkpoint holds."""
        self._checkpoint = Path(start.checkpoint) if start.checkpoint else None

    def interrupt(self) -> None:
        """Stop soon: a batch in training is finished and committed, a checkpoint is written, nothing more."""
        self._interrupted = True
        self._changed.notify()

    def wait_graph(self) -> str:
        """Who waits for whom, now."""
        return wait_graph(self._waits, [] if self.wiring is None else self.wiring.describe())

    async def run(self) -> JobResult:
        """Run to the end.

        Raises:
            WorkerError, WorkerLost, StarvedError, RuntimeError: the first cause of a failed run; the event
                log is complete and every started trajectory has an outcome.
        """
        self._emit_started()
        try:
            stall = self._config.run.stall_seconds
            watchdog = ("watchdog", lambda: watch(self._waits, self.wait_graph, stall, self._sink))
            result = await supervised(self._run(), [watchdog])
        except BaseException as error:
            interrupted = isinstance(error, asyncio.CancelledError)
            await self._give_up("interrupted" if interrupted else f"failed: {error}", save=not interrupted)
            raise
        self._sink.emit(RunEnded("interrupted" if result.interrupted else "finished"))
        return result

    async def _run(self) -> JobResult:
        self.wiring = wiring = await self._start_workers()
        self._waits.moved()
        loops = [*wiring.loops(), ("utilisation", lambda: self._report_busy(wiring))]
        return await supervised(self._main(wiring), loops)

    async def _give_up(self, reason: str, save: bool) -> None:
        """The run failed: save what was trained if the trainer still answers, give every trajectory its outcome.

        With a checkpoint of the newest version only what happened since is written, so that a resumed run starts
        no trajectory under a known identity.
        """
        wiring = self.wiring
        if wiring is not None:
            if save and (self._checkpoint is not None or wiring.protocol.trained > self._saved):
                with contextlib.suppress(WorkerError, WorkerLost, CallTimeout, OSError, TimeoutError):
                    async with asyncio.timeout(LAST_SAVE_SECONDS):
                        await self._save(wiring)
            wiring.scheduler.finish()
            wiring.scheduler.abandon_open()
        self._sink.emit(RunEnded(reason))

    async def _save(self, wiring: Wiring) -> Path:
        """Write a checkpoint of the newest version; if that is on disk already, only what happened since."""
        version = wiring.protocol.trained
        state = wiring.state(self._config, self._trained_seconds())
        if self._checkpoint is not None and self._saved == version:
            await self._checkpoints.renew(state, self._checkpoint)
        else:
            self._checkpoint = await self._checkpoints.save(state)
            self._saved = version
            wiring.cores.buffer.release_through(version - 1)
        return self._checkpoint

    async def _start_workers(self) -> Wiring:
        """Start trainer and engines, wire the control plane, and check that all hold the same weights."""
        trainer: TrainerInfo = await self._workers.trainer.call("start", self._start.checkpoint, timeout=START_SECONDS)
        self._waits.moved()
        starting = (engine.call("start", timeout=START_SECONDS) for engine in self._workers.engines)
        infos: list[EngineInfo] = list(await asyncio.gather(*starting))
        wiring = wire(
            self._config,
            self._workers,
            infos,
            self._affinity,
            self._start,
            self._ledger,
            self._sink,
            self._waits,
            self._changed,
            LoopHooks(self._hooks.batch_formed, self._iteration_ended, lambda: self._interrupted),
        )
        await self._same_weights(trainer, infos, wiring)
        return wiring

    async def _same_weights(self, trainer: TrainerInfo, infos: Sequence[EngineInfo], wiring: Wiring) -> None:
        """Engines load the model folder; after a resume they take the checkpoint's version from the store."""
        if trainer.version > 0:
            manifest: Manifest = await self._workers.trainer.call("publish", timeout=START_SECONDS)
            await wiring.proxy.prefetch(manifest)
            await wiring.proxy.suspend()
            await wiring.proxy.update(manifest)
            await wiring.proxy.resume()
            return
        for info in infos:
            if info.checksum != trainer.checksum:
                raise RuntimeError(
                    f"engine {info.address.engine} loaded weights with checksum {info.checksum}, "
                    f"the trainer's is {trainer.checksum}: do both see the same model folder?"
                )

    async def _main(self, wiring: Wiring) -> JobResult:
        evaluation = self._config.evaluation
        fresh = self._start.version == 0 and not self._interrupted
        if evaluation.instances and fresh:
            if evaluation.random_policy:
                await wiring.evaluation.play(self._start.version, random=True)
            await wiring.evaluation.play(self._start.version)
        self._training_since = _now()
        # a resumed run may have used its time up, and the first evaluation may have been interrupted
        if not (self._interrupted or self._time_is_up):
            wiring.scheduler.open()
            await wiring.loop.train()
        train_seconds = self._trained_seconds()
        checkpoint = await self._save(wiring)  # before anything else can go wrong
        await self._settle(wiring)
        if evaluation.instances and not self._interrupted:
            await wiring.loop.engines_reach(wiring.protocol.trained)
            await wiring.evaluation.play(wiring.protocol.trained)
        return JobResult(wiring.protocol.trained, self._interrupted, checkpoint, train_seconds)

    async def _iteration_ended(self, index: int) -> bool:
        """Checkpoint, evaluation and limits after W_{index + 1}; True stops the run here."""
        wiring = self.wiring
        if wiring is None:
            raise RuntimeError("an iteration ended before the run was wired")
        version = index + 1
        last = version >= self._config.run.iterations
        if self._checkpoints.due(version) and not last:
            await self._save(wiring)
        every = self._config.evaluation.every
        if every and version % every == 0 and not last and not self._interrupted:
            await self._evaluate(wiring, version)
        self._hooks.iteration_ended(index)
        return self._interrupted or self._time_is_up

    async def _evaluate(self, wiring: Wiring, version: int) -> None:
        """A pass between two iterations: training requests wait, the engines' version is fixed."""
        began = _now()
        await wiring.loop.engines_reach(version)
        wiring.loop.hold_updates(True)
        wiring.proxy.close_for(Purpose.TRAIN)
        await wiring.evaluation.play(version)
        wiring.proxy.close_for(None)
        wiring.loop.hold_updates(False)
        self._paused_seconds += _now() - began

    @property
    def _time_is_up(self) -> bool:
        limit = self._config.run.max_train_seconds
        return limit is not None and self._trained_seconds() >= limit

    def _trained_seconds(self) -> float:
        """Over all starts of the run."""
        since = self._training_since
        return self._start.train_seconds + (0.0 if since is None else _now() - since - self._paused_seconds)

    async def _settle(self, wiring: Wiring) -> None:
        """Abandon what is left and wait until the hosts have confirmed it."""
        wiring.scheduler.finish()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SETTLE_SECONDS):
                await self._changed.wait_for(
                    lambda: wiring.scheduler.settled or self._interrupted, "end of the run", wiring.scheduler.describe
                )
        wiring.scheduler.abandon_open()

    async def _report_busy(self, wiring: Wiring) -> None:
        period = self._config.log.utilisation_seconds
        while True:
            await asyncio.sleep(period)
            await wiring.proxy.report_busy()
            now = _now()
            for host in wiring.hosts:
                info = host.handle.info
                self._sink.emit(PoolBusy(info.worker, info.role, info.pool, now - period, now, 0.0, host.running))

    def _emit_started(self) -> None:
        config = self._config
        self._sink.emit(
            RunStarted(
                mode=config.run.mode,
                alpha=config.alpha,
                seed=config.run.seed,
                iterations=config.run.iterations,
                groups_per_batch=config.rollout.groups_per_batch,
                group_size=config.rollout.group_size,
                domains=config.shares,
                pools={name: pool.hardware for name, pool in config.pools.items()},
            )
        )


def _now() -> float:
    return asyncio.get_running_loop().time()
