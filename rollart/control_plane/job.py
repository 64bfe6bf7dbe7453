"""The Job: one training run, from workers that are placed to the last checkpoint.

It starts the workers' roles, wires the control plane together, runs evaluation and the training loop
under supervision, and sees to it that every started trajectory has an outcome when it ends, however it
ends. Placement is the caller's (it hands over the workers), display and files are the caller's sinks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from rollart.config.config import Config
from rollart.control_plane.checkpoints import Checkpoints, JobState
from rollart.control_plane.evaluation import Evaluation
from rollart.control_plane.groups import GroupBook
from rollart.control_plane.host_client import HostClient
from rollart.control_plane.ledger import Ledger
from rollart.control_plane.llm_proxy import EngineClient, LLMProxy
from rollart.control_plane.mix import SlotSchedule
from rollart.control_plane.protocol import TrainingProtocol
from rollart.control_plane.rollout_scheduler import Cores, RolloutScheduler, RolloutSettings
from rollart.control_plane.sample_buffer import SampleBuffer
from rollart.control_plane.supervision import Loop, supervised
from rollart.control_plane.tasks import TaskQueue
from rollart.control_plane.training_loop import LoopHooks, TrainingLoop
from rollart.control_plane.waits import Signal, Waits
from rollart.control_plane.watchdog import wait_graph, watch
from rollart.data_plane.generation.engine import EngineInfo
from rollart.data_plane.training.trainer import TrainerInfo
from rollart.data_plane.weights.store import Manifest
from rollart.events import EventSink, PoolBusy, RunEnded, RunStarted
from rollart.runtime.runtime import WorkerHandle
from rollart.types import Purpose, TrainBatch

START_SECONDS = 900.0
"""Deadline for loading a model."""

SETTLE_SECONDS = 30.0
"""At the end of a run, how long hosts may take to confirm cancelled trajectories."""

BUSY_SECONDS = 1.0
"""Period of the utilisation records."""


class JobWorkers(msgspec.Struct, frozen=True):
    """The placed workers of a run."""

    trainer: WorkerHandle
    engines: Sequence[WorkerHandle]
    hosts: Sequence[WorkerHandle]


class JobHooks(msgspec.Struct, frozen=True):
    """What the caller wants to be told, besides the events.

    Attributes:
        batch_formed: Each batch, before it is trained.
        iteration_ended: After each iteration (flush logs).
    """

    batch_formed: Callable[[TrainBatch], None]
    iteration_ended: Callable[[int], None]


class JobResult(msgspec.Struct, frozen=True):
    """How the run ended."""

    version: int
    """k of the final weights W_k."""
    interrupted: bool
    checkpoint: Path


class Job:
    """See the module docstring.

    Args:
        config: The validated configuration.
        workers: Placed and constructed, not started.
        affinity: Hardware class by domain for generation, ``default`` for the others.
        folder: The run folder; checkpoints go below it.
        sink: Where events go.
        hooks: See :class:`JobHooks`.
        resume: State of the checkpoint to continue from.
    """

    def __init__(
        self,
        config: Config,
        workers: JobWorkers,
        affinity: dict[str, str],
        folder: Path,
        sink: EventSink,
        hooks: JobHooks,
        resume: JobState | None = None,
    ) -> None:
        self._config = config
        self._workers = workers
        self._affinity = affinity
        self._sink = sink
        self._hooks = hooks
        self._resume = resume
        self._waits = Waits()
        self._changed = Signal(self._waits)
        self._checkpoints = Checkpoints(folder, config.training.checkpoint, workers.trainer, sink)
        self._ledger = Ledger(sink)
        self._paused_seconds = 0.0
        self._training_since: float | None = None
        self._interrupted = False
        self._saved: Path | None = None
        self._version = 0 if resume is None else resume.version

    def interrupt(self) -> None:
        """Stop soon: a batch in training is finished and committed, a checkpoint is written, nothing more."""
        self._interrupted = True
        self._changed.notify()

    def wait_graph(self) -> str:
        """Who waits for whom, now."""
        return wait_graph(self._waits, self._describe())

    async def run(self) -> JobResult:
        """Run to the end.

        Raises:
            WorkerError, WorkerLost, StarvedError, RuntimeError: the first cause of a failed run; the event
                log is complete and every started trajectory has an outcome.
        """
        self._emit_started()
        try:
            await self._start()
            loops = self._background()
            result = await supervised(self._main(), loops)
        except BaseException as error:
            self._abandon()
            reason = "interrupted" if isinstance(error, asyncio.CancelledError) else f"failed: {error}"
            self._sink.emit(RunEnded(reason))
            raise
        self._sink.emit(RunEnded("interrupted" if result.interrupted else "finished"))
        return result

    async def _start(self) -> None:
        """Start trainer and engines, check that they hold the same weights, and wire everything."""
        trainer: TrainerInfo
        folder = "" if self._resume is None else self._resume.checkpoint
        trainer = await self._workers.trainer.call("start", folder, timeout=START_SECONDS)
        self._version = trainer.version
        infos = await asyncio.gather(*(engine.call("start", timeout=START_SECONDS) for engine in self._workers.engines))
        self._wire(infos)
        await self._same_weights(trainer, infos)

    def _wire(self, infos: Sequence[EngineInfo]) -> None:
        config, changed = self._config, self._changed
        self._hosts = [HostClient(handle) for handle in self._workers.hosts]
        self._scheduler = RolloutScheduler(_settings(config), self._cores(), self._hosts, self._sink, changed)
        self._engines = [EngineClient(handle, info) for handle, info in zip(self._workers.engines, infos, strict=True)]
        self._proxy = LLMProxy(
            self._engines, self._affinity, self._sink, self._waits, self._scheduler.first_token, config.log.turns
        )
        self._scheduler.connect(self._proxy)
        self._protocol = TrainingProtocol(config.run.iterations, config.run.update, self._version)
        self._loop = TrainingLoop(
            self._protocol,
            self._workers.trainer,
            self._proxy,
            self._scheduler,
            self._sink,
            changed,
            LoopHooks(self._hooks.batch_formed, self._iteration_ended, lambda: self._interrupted),
        )
        self._evaluation = Evaluation(
            config.run.seed,
            tuple(config.domains),
            config.evaluation.instances,
            config.evaluation.greedy,
            config.rollout.retries,
            self._scheduler,
            self._sink,
            changed,
        )

    def _cores(self) -> Cores:
        config, state = self._config, self._resume
        rollout = config.rollout
        masked = frozenset(name for name, domain in config.domains.items() if domain.truncated == "mask")
        book = GroupBook(config.run.seed, rollout.group_size, rollout.redundant_members, rollout.retries, masked)
        slots = SlotSchedule(config.shares, rollout.groups_per_batch, rollout.mix_tolerance)
        cursors = dict.fromkeys(config.domains, 0)
        if state is not None:
            book.next_index = state.next_group
            cursors.update(state.cursors)
            slots.skip(state.version)
        capacity = (config.alpha + 1) * rollout.groups_per_batch + rollout.redundant_groups
        buffer = SampleBuffer(config.alpha, capacity, config.training.checkpoint.every > 0, self._version)
        self._buffer, self._book = buffer, book
        self._tasks = {name: TaskQueue(cursor) for name, cursor in cursors.items()}
        return Cores(book, buffer, slots, self._tasks, self._ledger)

    async def _same_weights(self, trainer: TrainerInfo, infos: Sequence[EngineInfo]) -> None:
        """Engines load the model folder; after a resume they take the checkpoint's version from the store."""
        if trainer.version > 0:
            manifest: Manifest = await self._workers.trainer.call("publish", timeout=START_SECONDS)
            await self._proxy.prefetch(manifest)
            await self._proxy.suspend()
            await self._proxy.update(manifest)
            await self._proxy.resume()
            return
        for info in infos:
            if info.checksum != trainer.checksum:
                raise RuntimeError(
                    f"engine {info.address.engine} loaded weights with checksum {info.checksum}, "
                    f"the trainer's is {trainer.checksum}: do both see the same model folder?"
                )

    def _background(self) -> list[Loop]:
        loops: list[Loop] = [*self._proxy.tasks()]
        for host in self._hosts:
            loops.append((f"{host.name}-outbox", host.outbox.run))
            loops.append((f"{host.name}-reports", lambda host=host: host.collect(self._scheduler.receive)))
        loops.append(("publisher", self._loop.publish))
        loops.append(("rollout side", self._loop.update))
        loops.append(("utilisation", self._report_busy))
        stall = self._config.run.stall_seconds
        loops.append(("watchdog", lambda: watch(self._waits, self._describe(), stall, self._sink)))
        return loops

    async def _main(self) -> JobResult:
        evaluation = self._config.evaluation
        if evaluation.instances and self._resume is None and not self._interrupted:
            if evaluation.random_policy:
                await self._evaluation.play(self._version, random=True)
            await self._evaluation.play(self._version)
        self._training_since = _now()
        self._scheduler.open()
        await self._loop.train()
        self._training_since = None
        await self._settle()
        if evaluation.instances and not self._interrupted:
            await self._loop.engines_reach(self._protocol.trained)
            await self._evaluation.play(self._protocol.trained)
        self._version = self._protocol.trained
        checkpoint = await self._checkpoints.save(self._state())
        return JobResult(self._version, self._interrupted, checkpoint)

    async def _iteration_ended(self, index: int) -> bool:
        """Checkpoint, evaluation and limits after W_{index + 1}; True stops the run here."""
        version = index + 1
        last = version >= self._config.run.iterations
        if self._checkpoints.due(version) and not last:
            await self._checkpoints.save(self._state())
            self._buffer.release_through(index)
        every = self._config.evaluation.every
        if every and version % every == 0 and not last and not self._interrupted:
            await self._evaluate(version)
        self._hooks.iteration_ended(index)
        limit = self._config.run.max_train_seconds
        return self._interrupted or (limit is not None and self._trained_seconds() >= limit)

    async def _evaluate(self, version: int) -> None:
        """A pass between two iterations: training requests wait, the engines' version is fixed."""
        began = _now()
        await self._loop.engines_reach(version)
        self._loop.hold_updates(True)
        self._proxy.close_for(Purpose.TRAIN)
        await self._evaluation.play(version)
        self._proxy.close_for(None)
        self._loop.hold_updates(False)
        self._paused_seconds += _now() - began

    def _trained_seconds(self) -> float:
        since = self._training_since
        return 0.0 if since is None else _now() - since - self._paused_seconds

    async def _settle(self) -> None:
        """Abandon what is left and wait until the hosts have confirmed it."""
        self._scheduler.finish()
        try:
            async with asyncio.timeout(SETTLE_SECONDS):
                await self._changed.wait_for(
                    lambda: self._scheduler.settled, "end of the run", self._scheduler.describe
                )
        except TimeoutError:
            pass
        self._scheduler.abandon_open()

    def _abandon(self) -> None:
        """The run failed: give every open trajectory its outcome."""
        if hasattr(self, "_scheduler"):
            self._scheduler.abandon_open()

    async def _report_busy(self) -> None:
        while True:
            await asyncio.sleep(BUSY_SECONDS)
            await self._proxy.report_busy()
            now = _now()
            for host in self._hosts:
                info = host.handle.info
                self._sink.emit(PoolBusy(info.worker, info.role, info.pool, now - BUSY_SECONDS, now, 0.0, host.running))

    def _state(self) -> JobState:
        return JobState(
            version=self._protocol.trained,
            next_group=self._book.next_index,
            cursors={name: queue.cursor for name, queue in self._tasks.items()},
        )

    def _describe(self) -> list[Callable[[], str]]:
        if not hasattr(self, "_loop"):
            return []
        return [self._protocol.describe, self._scheduler.describe, self._proxy.describe]

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


def _settings(config: Config) -> RolloutSettings:
    rollout = config.rollout
    return RolloutSettings(
        alpha=config.alpha,
        iterations=config.run.iterations,
        groups_per_batch=rollout.groups_per_batch,
        redundant_groups=rollout.redundant_groups,
        max_environments=rollout.max_environments,
        retry_delay=rollout.retry_delay,
        starvation_limit=rollout.starvation_limit,
        filter_zero_variance=rollout.filter_zero_variance,
    )


def _now() -> float:
    return asyncio.get_running_loop().time()
