"""Seeded mutants: each is one plausible mistake in the control plane, and the invariant that it breaks must say so.

Each is caught within a few dozen random runs, by a violation of the kind that the test names.
"""

from __future__ import annotations

from collections import Counter

import msgspec
import pytest
from families import plain, that_is_pressed, with_lost_hosts
from mutants import caught

from rollart.control_plane import rollout_scheduler, sample_buffer
from rollart.control_plane.env_host import HostReport
from rollart.control_plane.groups import GroupBook
from rollart.control_plane.host_client import HostClient
from rollart.control_plane.ledger import Ledger
from rollart.control_plane.llm_proxy import LLMProxy
from rollart.control_plane.mix import SlotSchedule
from rollart.control_plane.sample_buffer import SampleBuffer
from rollart.control_plane.training_loop import TrainingLoop
from rollart.control_plane.waits import Signal
from rollart.data_plane.generation.emulated import EmulatedCore
from rollart.types import EpisodeFailure, FailureKind, Outcome, TrainBatch


def test_mutant_alpha_off_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollout_scheduler, "oldest_admissible_start", lambda batch, alpha: batch - alpha - 1)
    monkeypatch.setattr(sample_buffer, "oldest_admissible_start", lambda batch, alpha: batch - alpha - 1)
    monkeypatch.setattr(sample_buffer, "is_stale", lambda start, batch, alpha: start < batch - alpha - 1)
    caught("staleness:", that_is_pressed)


def test_mutant_lost_outcome(monkeypatch: pytest.MonkeyPatch) -> None:
    end = Ledger.end

    def forgetful(self: Ledger, trajectory: object, outcome: Outcome, **kwargs: object) -> None:
        if outcome is not Outcome.SURPLUS:
            end(self, trajectory, outcome, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(Ledger, "end", forgetful)
    caught("outcome:")


def test_mutant_versions_that_fall(monkeypatch: pytest.MonkeyPatch) -> None:
    info = EmulatedCore.update

    def backwards(self: EmulatedCore, manifest: object, flat: object) -> None:
        info(self, manifest, flat)  # type: ignore[arg-type]
        self._version = -self._version

    monkeypatch.setattr(EmulatedCore, "update", backwards)
    caught("versions:")


def test_mutant_slots_borrowed_without_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SlotSchedule, "_within_tolerance", lambda self, slots: True)
    caught("mix:", that_is_pressed, mix_tolerance=1.0)


def test_mutant_environment_limit_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    def eager_pump(self: rollout_scheduler.RolloutScheduler) -> None:
        if self._closed:
            return
        self._open_groups()
        while (spec := self._book.next_start()) is not None:
            self._ledger.start(spec.id, spec.seed, self._start(spec).name)

    monkeypatch.setattr(rollout_scheduler.RolloutScheduler, "pump", eager_pump)
    caught("bound:")


def test_mutant_double_training(monkeypatch: pytest.MonkeyPatch) -> None:
    commit = SampleBuffer.commit

    def commit_and_return(self: SampleBuffer, index: int) -> TrainBatch:
        batch = commit(self, index)
        for group in batch.groups[:1]:
            self._ready.setdefault(group.domain, {})[group.index] = group
        return batch

    monkeypatch.setattr(SampleBuffer, "commit", commit_and_return)
    caught("trained:")


def test_mutant_lost_wake_up(monkeypatch: pytest.MonkeyPatch) -> None:
    notify = Signal.notify
    calls = Counter[str]()

    def sleepy(self: Signal) -> None:
        calls["notify"] += 1
        if calls["notify"] % 3:
            notify(self)

    monkeypatch.setattr(Signal, "notify", sleepy)
    caught("liveness: Hang", runs=20)


def test_mutant_retry_that_keeps_its_identity(monkeypatch: pytest.MonkeyPatch) -> None:
    failed = GroupBook.failed

    def same_attempt(self: GroupBook, failure: object) -> object:
        consequence = failed(self, failure)  # type: ignore[arg-type]
        if consequence is not None and hasattr(consequence, "attempt"):
            return msgspec.structs.replace(consequence, id=failure.id)  # type: ignore[attr-defined]
        return consequence

    monkeypatch.setattr(GroupBook, "failed", same_attempt)
    caught("outcome:", step_error=0.2, retries=3)


def test_mutant_lost_host_whose_cancelled_trajectories_stay_open(monkeypatch: pytest.MonkeyPatch) -> None:
    failed = rollout_scheduler.RolloutScheduler._failed

    def running_only(self: rollout_scheduler.RolloutScheduler, failure: EpisodeFailure) -> None:
        if failure.kind is not FailureKind.HOST_LOST or self._book.is_running(failure.id):
            failed(self, failure)

    monkeypatch.setattr(rollout_scheduler.RolloutScheduler, "_failed", running_only)
    caught("host:", with_lost_hosts)


def test_mutant_lost_host_whose_requests_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its sessions stay at the engines."""
    monkeypatch.setattr(LLMProxy, "abort", lambda self, trajectory: None)
    monkeypatch.setattr(LLMProxy, "release", lambda self, trajectory: None)
    caught("bound:", with_lost_hosts)


def test_mutant_dead_host_that_is_heard_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports of a process that was given up are taken for news of the present one."""
    receive = rollout_scheduler.RolloutScheduler.receive
    lost = rollout_scheduler.RolloutScheduler.host_lost
    last: dict[int, HostReport] = {}

    def remember(self: rollout_scheduler.RolloutScheduler, host: HostClient, report: HostReport) -> None:
        if report.finished:
            last[id(host)] = report
        receive(self, host, report)

    def late(self: rollout_scheduler.RolloutScheduler, host: HostClient, cause: str) -> None:
        lost(self, host, cause)
        if id(host) in last:
            receive(self, host, last.pop(id(host)))

    monkeypatch.setattr(rollout_scheduler.RolloutScheduler, "receive", remember)
    monkeypatch.setattr(rollout_scheduler.RolloutScheduler, "host_lost", late)
    caught("liveness: KeyError", with_lost_hosts)


def test_mutant_push_that_overtakes_its_report(monkeypatch: pytest.MonkeyPatch) -> None:
    async def at_once(self: TrainingLoop, version: int) -> None: ...

    monkeypatch.setattr(TrainingLoop, "_reported", at_once)
    # Batches are there before they are asked for, and pushes take about as long as a report.
    caught(
        "liveness: ProtocolError", plain, alpha=3, iterations=8, slow=(0.0, 0.01), train=0.05, publish=0.25, report=0.4
    )


def test_mutant_suspension_that_keeps_excess_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollout_scheduler.RolloutScheduler, "_shed_excess", lambda self: None)
    caught(
        "liveness:", plain, runs=80,
        alpha=0, mode="sync", weights=(6.0, 6.0, 1.0, 1.0), groups_per_batch=8, step_error=0.03, retries=0,
        starvation_limit=1, iterations=2,
    )  # fmt: skip
