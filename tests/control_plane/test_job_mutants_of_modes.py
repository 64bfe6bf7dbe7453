"""Seeded mutants of what the modes and their switches promise: policies, stages, transfer, order, ends."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from families import plain, that_is_pressed, that_waits, with_a_death
from mutants import caught

from rollart.config.config import Config
from rollart.control_plane import rollout_scheduler, wiring
from rollart.control_plane.barrier import Barrier
from rollart.control_plane.host_client import HostClient
from rollart.control_plane.job import Job
from rollart.control_plane.llm_proxy import LLMProxy
from rollart.control_plane.protocol import RolloutState, TrainingProtocol, TrainingState
from rollart.control_plane.rollout_scheduler import Cores, RolloutScheduler
from rollart.control_plane.sample_buffer import SampleBuffer
from rollart.control_plane.stages import Stages
from rollart.control_plane.training_loop import TrainingLoop
from rollart.data_plane.generation.shell import EngineShell
from rollart.data_plane.training import emulated
from rollart.data_plane.weights.store import Manifest
from rollart.types import Group, TrajectoryId


def test_mutant_withhold_that_trains_what_is_too_old(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch takes the group as it is, its members that are too old with it."""
    monkeypatch.setattr(SampleBuffer, "_withhold_stale", lambda self, group: group)
    caught("staleness:", that_is_pressed, stale="withhold", group_size=4, max_environments=8)


def test_mutant_trainer_that_trains_withheld_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    def everybody(group: Group) -> list[int]:
        return list(range(len(group.members)))

    monkeypatch.setattr(emulated, "trained_members", everybody)
    caught("tokens:", that_is_pressed, stale="withhold", group_size=4, max_environments=8)


def test_mutant_wait_that_never_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollout_scheduler, "waiting_saves_a_group", lambda *arguments: False)
    caught("wait:", that_waits)


def test_mutant_wait_that_waits_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollout_scheduler, "waiting_saves_a_group", lambda *arguments: True)
    assert "get_batch(0) waits" in caught("liveness: Hang", that_waits)


def test_mutant_barrier_that_releases_one_too_early(monkeypatch: pytest.MonkeyPatch) -> None:
    release = Barrier._release

    def early(self: Barrier[TrajectoryId]) -> None:
        missing = self.missing
        if len(missing) == 1 and self._lasting:
            del self._expected[missing[0]]
            release(self)
            self._expected[missing[0]] = None
        else:
            release(self)

    monkeypatch.setattr(Barrier, "_release", early)
    caught("lock-step:", plain, mode="sync", slow=(0.0, 1.0), turns=4)


def test_mutant_scoring_that_waits_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Stages, "played", lambda self, trajectory, go: go())
    caught("scoring:", plain, mode="sync_plus", scoring="batch", slow=(0.0, 1.0))


def test_mutant_barrier_with_a_lost_wake_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is excused leaves, but those that wait for it are not looked at again."""

    def forgetful(self: Barrier[TrajectoryId], key: TrajectoryId) -> None:
        self._expected.pop(key, None)
        held = self._arrived.pop(key, None)
        if held is not None:
            held[1]()

    monkeypatch.setattr(Barrier, "excuse", forgetful)
    message = caught("liveness: Hang", plain, mode="sync", slow=(0.0, 1.0))
    assert "get_batch(0) waits" in message
    assert "requests wait for nobody, but were not released" in message


def test_mutant_blocking_transfer_that_resumes_before_the_swap(monkeypatch: pytest.MonkeyPatch) -> None:
    async def hasty(self: TrainingLoop) -> None:
        manifest = await self._publish()
        await self._proxy.prefetch(manifest)
        await self._proxy.resume()
        await asyncio.sleep(0.0)
        await self._proxy.update(manifest)

    monkeypatch.setattr(TrainingLoop, "_transfer", hasty)
    assert "the engine is not suspended" in caught("liveness: WorkerError", plain, transfer="blocking")


def test_mutant_blocking_transfer_that_lets_engines_generate_while_it_pushes(monkeypatch: pytest.MonkeyPatch) -> None:
    async def open_while_pushing(self: TrainingLoop) -> None:
        await self._proxy.resume()
        manifest = await self._publish()
        await self._proxy.prefetch(manifest)
        await self._proxy.suspend()
        await self._proxy.update(manifest)

    monkeypatch.setattr(TrainingLoop, "_transfer", open_while_pushing)
    caught("update:", transfer="blocking", publish=1.0)


def trains_when_held(monkeypatch: pytest.MonkeyPatch) -> None:
    """``train_step`` begins as soon as a batch is there."""
    monkeypatch.setattr(TrainingProtocol, "may_train", property(lambda self: self.training is TrainingState.HOLD))


def test_mutant_trainer_that_trains_before_its_push(monkeypatch: pytest.MonkeyPatch) -> None:
    trains_when_held(monkeypatch)
    caught("order: train_step(1) began before its weights were pushed", plain, mode="areal", slow=(0.0, 0.05))


def test_mutant_trainer_that_trains_before_the_engines_have_its_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    trains_when_held(monkeypatch)
    caught("order: train_step(1) began before the engines had its weights", plain, update="at_batch", publish=0.3)


def test_mutant_push_that_is_announced_before_it_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """The train step ends: its version counts as announced although nothing was pushed yet."""
    ended = TrainingProtocol.train_ended

    def announced(self: TrainingProtocol, version: int) -> None:
        ended(self, version)
        self.announced = version

    monkeypatch.setattr(TrainingProtocol, "train_ended", announced)
    caught("liveness: KeyError", plain)


def test_mutant_admission_without_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """Admission, and the buffer behind it, take as many groups as there are slots in the whole run."""
    monkeypatch.setattr(rollout_scheduler, "admission_limit", lambda v, b, alpha, groups, n: (n - b) * groups)
    cores = wiring._cores

    def roomy(config: Config, *rest: Sequence[object]) -> Cores:
        made: Cores = cores(config, *rest)  # type: ignore[arg-type]
        made.buffer._capacity = 10**9
        return made

    monkeypatch.setattr(wiring, "_cores", roomy)
    assert "live groups, at most" in caught("bound:", plain, iterations=8)


def test_mutant_counts_that_are_never_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is counted for a trajectory is kept when it has ended."""

    def keeps(self: RolloutScheduler, host: HostClient, trajectory: TrajectoryId) -> None:
        host.running -= 1
        del self._host_of[trajectory]
        self._stages.ended(trajectory)
        self.proxy.release(trajectory)

    monkeypatch.setattr(RolloutScheduler, "_freed", keeps)
    assert "counts of generated tokens" in caught("bound:", max_environments=3)


def test_mutant_engine_that_takes_weights_while_it_generates(monkeypatch: pytest.MonkeyPatch) -> None:
    """The swap is made by the prefetch: what is under way gets the new version before the update."""
    prefetch = EngineShell.prefetch

    async def at_once(self: EngineShell, manifest: Manifest) -> None:
        await prefetch(self, manifest)
        self._core.update(manifest, None)
        await asyncio.sleep(0.3)

    monkeypatch.setattr(EngineShell, "prefetch", at_once)
    assert "its engine held" in caught("versions: turn", transfer="asynchronous")


def test_mutant_update_at_any_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """``at_batch`` is read as ``eager``, but for the order of its train steps."""

    def due(self: TrainingProtocol) -> int | None:
        newest = self.trained if self.blocking else self.announced
        return newest if self.rollout is RolloutState.ROLLOUT and newest > self.engines else None

    monkeypatch.setattr(TrainingProtocol, "update_due", due)
    caught("batch:", plain, mode="one_off")


def test_mutant_engine_whose_lost_answers_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(self: LLMProxy) -> None:
        await asyncio.get_running_loop().create_future()

    monkeypatch.setattr(LLMProxy, "_give_up_late", never)
    assert "in flight" in caught("liveness: Hang", plain, lost_answers=0.1, answer_timeout=4.0)


def test_mutant_failed_run_that_does_not_save(monkeypatch: pytest.MonkeyPatch) -> None:
    give_up = Job._give_up

    async def at_once(self: Job, reason: str, save: bool) -> None:
        await give_up(self, reason, save=False)

    monkeypatch.setattr(Job, "_give_up", at_once)
    caught("saved:", with_a_death)
