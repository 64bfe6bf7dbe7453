"""The shell of the training protocol: three loops around one state machine.

* training side: ``get_batch(k)`` -> ``train_step(k)`` -> commit;
* publisher: pushes the newest weights to the store in the background and announces them;
* rollout side: prefetch while generating, then suspend -> update -> resume -> recompute. With a blocking transfer
  there is no publisher: push, pull and swap are all part of ``update``.

The loops share the :class:`TrainingProtocol` and wake each other through one :class:`Signal`. The first
loop that fails ends the run with its error.

Who calls it: the Job. It calls the trainer's Worker, the LLMProxy and the RolloutScheduler.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence

import msgspec

from rollart.control_plane.llm_proxy import LLMProxy
from rollart.control_plane.protocol import RolloutState, TrainingProtocol, TrainingState
from rollart.control_plane.rollout_scheduler import RolloutScheduler
from rollart.control_plane.waits import Signal
from rollart.data_plane.weights.store import Manifest
from rollart.events import (
    Alarm,
    BatchCommitted,
    BatchFormed,
    Event,
    EventSink,
    ProtocolStep,
    TrainStepped,
    VersionPublished,
)
from rollart.runtime.runtime import WorkerHandle
from rollart.types import TrainBatch, TrainReport

TRAIN_SECONDS = 6 * 3600.0
"""Deadline of one train step; the watchdog reports long before it."""

PUBLISH_SECONDS = 1800.0
"""Deadline of a push to the weight store."""


class LoopHooks(msgspec.Struct, frozen=True):
    """What the Job does at the loop's fixed points.

    Attributes:
        batch_formed: Called with each batch before it is trained (trajectory log).
        iteration_ended: Awaited after the commit of batch k and W_{k+1}: checkpoint, evaluation, limits.
            Returns True to stop after this iteration.
        stop_requested: Asked while ``get_batch`` waits: True ends the run without the batch.
    """

    batch_formed: Callable[[TrainBatch], None]
    iteration_ended: Callable[[int], Awaitable[bool]]
    stop_requested: Callable[[], bool]


class TrainingLoop:
    """See the module docstring."""

    def __init__(
        self,
        protocol: TrainingProtocol,
        trainer: WorkerHandle,
        proxy: LLMProxy,
        scheduler: RolloutScheduler,
        sink: EventSink,
        changed: Signal,
        hooks: LoopHooks,
    ) -> None:
        self._protocol = protocol
        self._trainer = trainer
        self._proxy = proxy
        self._scheduler = scheduler
        self._sink = sink
        self._changed = changed
        self._hooks = hooks
        self._manifests: dict[int, Manifest] = {}
        self._hold_updates = False
        self._alarmed: set[str] = set()
        self.stopped = False

    async def train(self) -> None:
        """The training side: every iteration, until the last one or a stop."""
        protocol = self._protocol
        while protocol.training is not TrainingState.DONE and not self.stopped:
            batch = await self._get_batch()
            if batch is None:
                return
            self._hooks.batch_formed(batch)
            await self._changed.wait_for(lambda: protocol.may_train, "train_step", protocol.describe)
            await self._train_step(batch)
            self.stopped = await self._hooks.iteration_ended(batch.index)

    async def publish(self) -> None:
        """The publisher: one push at a time, always of the newest version, until cancelled."""
        protocol = self._protocol
        while True:
            await self._changed.wait_for(
                lambda: not protocol.blocking and protocol.trained > protocol.announced,
                "publisher",
                lambda: "nothing: updates push" if protocol.blocking else "a version newer than announced",
            )
            await self._publish()

    async def update(self) -> None:
        """The rollout side: take each version that is due, until cancelled."""
        protocol = self._protocol
        while True:
            await self._changed.wait_for(
                lambda: not self._hold_updates and protocol.update_due() is not None,
                "rollout side",
                lambda: "an update that is due" + (", updates are held for evaluation" if self._hold_updates else ""),
            )
            version = protocol.update_due()
            if version is None:
                continue
            if not protocol.blocking:
                await self._proxy.prefetch(self._manifests[version])
            protocol.suspend_begins(version)
            await self._step(RolloutState.SUSPEND, self._proxy.suspend())
            await self._step(RolloutState.UPDATE, self._transfer() if protocol.blocking else self._swap(version))
            await self._step(RolloutState.RESUME, self._proxy.resume())
            await self._step(RolloutState.RECOMPUTE, self._recompute())
            self._manifests = {v: m for v, m in self._manifests.items() if v > protocol.engines}
            self._changed.notify()

    async def _publish(self) -> Manifest:
        """Push the trainer's newest version and announce it."""
        began = _now()
        await self._trainer.call("retain", self._protocol.engines, timeout=PUBLISH_SECONDS)
        manifest: Manifest = await self._trainer.call("publish", timeout=PUBLISH_SECONDS)
        seconds = _now() - began
        self._sink.emit(
            VersionPublished(manifest.version, manifest.size, len(manifest.buckets), seconds, manifest.checksum)
        )
        self._manifests[manifest.version] = manifest
        await self._reported(manifest.version)
        self._protocol.announce(manifest.version)
        self._changed.notify()
        return manifest

    async def _swap(self, version: int) -> None:
        await self._proxy.update(self._manifests[version])

    async def _transfer(self) -> None:
        """Everything that moves weights, while rollout is suspended."""
        manifest = await self._publish()
        await self._proxy.prefetch(manifest)
        await self._proxy.update(manifest)

    async def engines_reach(self, version: int) -> None:
        """Wait until every engine holds at least ``version`` and rolls out."""
        protocol = self._protocol
        protocol.demand(version)
        self._changed.notify()
        await self._changed.wait_for(
            lambda: protocol.engines >= version and protocol.rollout is RolloutState.ROLLOUT,
            "evaluation",
            lambda: f"engines at version {version}, {protocol.describe()}",
        )

    def hold_updates(self, hold: bool) -> None:
        """Keep the engines' version fixed (evaluation), or let updates go on."""
        self._hold_updates = hold
        self._changed.notify()

    async def _reported(self, version: int) -> None:
        """Wait until the report of the train step that made ``version`` has arrived: a push may overtake it."""
        await self._changed.wait_for(
            lambda: self._protocol.trained >= version, "publisher", lambda: f"the report of version {version}"
        )

    async def _get_batch(self) -> TrainBatch | None:
        """Block until the batch is formed; ``None`` if a stop was requested meanwhile."""
        index = self._protocol.index
        began = _now()
        formed: list[TrainBatch] = []

        def ready() -> bool:
            if self._scheduler.fatal is not None or self._hooks.stop_requested():
                return True
            batch = self._scheduler.try_form()
            if batch is not None:
                formed.append(batch)
            return bool(formed)

        await self._changed.wait_for(ready, f"get_batch({index})", self._scheduler.describe)
        if self._scheduler.fatal is not None:
            raise self._scheduler.fatal
        if not formed:
            return None
        waited = _now() - began
        self._protocol.batch_formed(index)
        self._emit(
            _formed(formed[0], waited),
            ProtocolStep(TrainingState.GET_BATCH.value, index, self._protocol.engines, waited),
        )
        self._changed.notify()
        return formed[0]

    async def _train_step(self, batch: TrainBatch) -> None:
        self._protocol.train_begins()
        began = _now()
        report: TrainReport = await self._trainer.call("train_step", batch, timeout=TRAIN_SECONDS)
        seconds = _now() - began
        committed = self._scheduler.commit(batch.index)
        self._protocol.train_ended(report.version)
        self._emit(
            TrainStepped(
                batch.index, report.version, report.seconds, report.tokens, report.metrics, tuple(report.alarms)
            ),
            BatchCommitted(batch.index, sum(len(group.members) for group in committed.groups)),
            ProtocolStep(TrainingState.TRAIN_STEP.value, batch.index, report.version, seconds),
            *(Alarm("training", text) for text in self._news(report.alarms)),
        )
        self._changed.notify()

    def _news(self, alarms: Sequence[str]) -> list[str]:
        """The alarms that the iteration before did not have; what comes before the colon names an alarm."""
        names = [text.partition(":")[0] for text in alarms]
        new = [text for name, text in zip(names, alarms, strict=True) if name not in self._alarmed]
        self._alarmed = set(names)
        return new

    async def _step(self, state: RolloutState, work: Awaitable[None]) -> None:
        began = _now()
        await work
        self._protocol.rollout_step_ended(state)
        self._sink.emit(ProtocolStep(state.value, self._protocol.index, self._protocol.engines, _now() - began))
        self._changed.notify()

    async def _recompute(self) -> None:
        """Engines rebuild their KV lazily; here, what the new version made stale is resolved."""
        self._scheduler.version_changed()

    def _emit(self, *events: Event) -> None:
        for event in events:
            self._sink.emit(event)


def _formed(batch: TrainBatch, waited: float) -> BatchFormed:
    groups = Counter(group.domain for group in batch.groups)
    staleness = Counter(
        batch.index - member.start_version
        for group in batch.groups
        for position, member in enumerate(group.members)
        if member.start_version is not None and position not in group.withheld
    )
    return BatchFormed(batch.index, dict(groups), dict(staleness), waited)


def _now() -> float:
    return asyncio.get_running_loop().time()
