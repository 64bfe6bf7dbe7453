"""The design's invariants under random schedules, latencies, failures and settings, in virtual time.

``violations`` is trusted because it finds the seeded mutants at the end of this file: each is one
plausible mistake in the control plane, and each must be caught within a few dozen random runs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from virtual_job import Scenario, play, random_kills, random_scenario, violations

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
from rollart.events import CheckpointSaved, DomainSuspended, Evaluated, Event, TrajectoryEnded, WorkerRestarted
from rollart.runtime.runtime import WorkerLost
from rollart.types import EpisodeFailure, FailureKind, Outcome, TrainBatch


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(0, 2**32))
def test_every_invariant_holds_in_every_random_run(seed: int) -> None:
    assert violations(play(random_scenario(seed))) == []


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(0, 2**32))
def test_every_invariant_holds_when_hosts_die_at_random_moments(seed: int) -> None:
    assert violations(play(random_kills(seed))) == []


def test_the_only_host_dies_and_the_run_goes_on() -> None:
    story = play(Scenario(seed=4, retries=0, kills=((0.2, 0), (0.9, 0)), restart=(0.5, 0)))
    assert violations(story) == []
    assert [event.restart for event in story.events if isinstance(event, WorkerRestarted)] == [1, 2]
    ended = [event for event in story.events if isinstance(event, TrajectoryEnded)]
    lost = [event for event in ended if event.failure is FailureKind.HOST_LOST]
    assert lost
    assert all("environment-0" in event.message for event in lost)
    assert {event.outcome for event in lost} == {Outcome.FAILED}


def test_an_evaluation_survives_the_only_host() -> None:
    scenario = Scenario(seed=4, retries=0, kills=((0.1, 0), (0.4, 0)), restart=(0.2, 1), evaluate_every=1)
    story = play(scenario)
    assert violations(story) == []
    assert any(isinstance(event, WorkerRestarted) for event in story.events)
    assert {event.failed for event in story.events if isinstance(event, Evaluated)} == {0}


def test_a_host_that_dies_too_often_ends_the_run_with_the_first_cause() -> None:
    scenario = Scenario(seed=4, hosts=2, kills=((0.3, 1), (0.6, 1)), host_restarts=1)
    story = play(scenario)
    assert isinstance(story.error, WorkerLost)
    assert str(story.error).startswith("environment-1 was lost 2 times and rollout.host_restarts is 1; the first cause")
    assert "has been killed" in str(story.error)
    assert [fault for fault in violations(story) if not fault.startswith("liveness: WorkerLost")] == []


@pytest.mark.slow
def test_a_thousand_random_runs() -> None:
    for seed in range(1000):
        assert violations(play(random_scenario(seed))) == [], random_scenario(seed)
        assert violations(play(random_kills(seed))) == [], random_kills(seed)


def test_the_same_scenario_gives_the_same_events() -> None:
    scenario = random_scenario(11)
    first, second = play(scenario).events, play(scenario).events
    assert _without_paths(first) == _without_paths(second)


def test_alpha_zero_never_lets_rollout_and_training_overlap() -> None:
    story = play(Scenario(seed=3, mode="sync", iterations=4, engines=2, hosts=2))
    assert violations(story) == []
    for batch in story.batches:
        for group in batch.groups:
            assert {member.start_version for member in group.members} == {batch.index}


def test_slow_domains_are_aborted_at_the_bound_and_their_tasks_come_back() -> None:
    story = play(Scenario(seed=5, alpha=1, slow=(0.0, 1.9), train=0.01, publish=0.0, iterations=8, mix_tolerance=6.0))
    assert violations(story) == []
    ended = Counter(event.outcome for event in story.events if isinstance(event, TrajectoryEnded))
    assert ended[Outcome.ABORTED_STALE] + ended[Outcome.EVICTED_STALE] > 0


def test_failures_are_contained_retried_and_never_rewards() -> None:
    story = play(Scenario(seed=2, step_error=0.1, reset_error=0.1, step_hang=0.05, retries=3, iterations=4))
    assert violations(story) == []
    ended = [event for event in story.events if isinstance(event, TrajectoryEnded)]
    failed = [event for event in ended if event.outcome is Outcome.FAILED]
    assert failed
    assert all(event.reward is None and event.failure is not None and event.message for event in failed)


def test_a_domain_that_always_fails_is_suspended_and_its_share_goes_to_the_others() -> None:
    story = play(Scenario(seed=1, slow=(3.0, 4.0), retries=0, iterations=6, mix_tolerance=2.0))
    assert violations(story) == []
    assert [event.domain for event in story.events if isinstance(event, DomainSuspended)] == ["d0"]
    assert {domain for batch in story.batches[3:] for domain in (group.domain for group in batch.groups)} == {"d1"}


def test_a_run_whose_last_domain_fails_ends_with_the_cause() -> None:
    story = play(Scenario(seed=1, weights=(1.0,), reset_error=1.0, retries=0))
    assert story.error is not None
    assert "no domain is left" in str(story.error)
    assert any(isinstance(event, DomainSuspended) for event in story.events)


def test_evaluation_between_iterations_neither_blocks_nor_is_trained() -> None:
    for seed in range(6):
        story = play(Scenario(seed=seed, iterations=4, evaluate_every=1, max_environments=3, slow=(0.0, 0.5)))
        assert violations(story) == []
        versions = [event.version for event in story.events if isinstance(event, Evaluated) and event.policy == "model"]
        assert sorted(set(versions)) == [0, 1, 2, 3, 4]


def _without_paths(events: list[Event]) -> list[Event]:
    return [event for event in events if not isinstance(event, CheckpointSaved)]


def found_by_some_run(family: Callable[[int], Scenario], runs: int = 60) -> bool:
    return any(violations(play(family(seed))) for seed in range(runs))


def slow_scenario(seed: int) -> Scenario:
    """Runs in which the bound binds: slow domains, fast training."""
    return msgspec.structs.replace(
        random_scenario(seed),
        alpha=1,
        mode="rollart",
        stale=None,
        interaction=None,
        slow=(0.0, 1.9),
        train=0.01,
        publish=0.0,
        mix_tolerance=3.0,
    )


def test_mutant_alpha_off_by_one_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollout_scheduler, "oldest_admissible_start", lambda batch, alpha: batch - alpha - 1)
    monkeypatch.setattr(sample_buffer, "oldest_admissible_start", lambda batch, alpha: batch - alpha - 1)
    monkeypatch.setattr(sample_buffer, "is_stale", lambda start, batch, alpha: start < batch - alpha - 1)
    assert found_by_some_run(slow_scenario)


def test_mutant_admission_without_the_bound_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollout_scheduler, "admission_limit", lambda v, b, alpha, groups, n: 10 * groups)
    assert found_by_some_run(random_scenario)


def test_mutant_lost_outcome_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    end = Ledger.end

    def forgetful(self: Ledger, trajectory: object, outcome: Outcome, **kwargs: object) -> None:
        if outcome is not Outcome.SURPLUS:
            end(self, trajectory, outcome, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(Ledger, "end", forgetful)
    assert found_by_some_run(random_scenario)


def test_mutant_versions_that_fall_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    info = EmulatedCore.update

    def backwards(self: EmulatedCore, manifest: object, flat: object) -> None:
        info(self, manifest, flat)  # type: ignore[arg-type]
        self._version = -self._version

    monkeypatch.setattr(EmulatedCore, "update", backwards)
    assert found_by_some_run(random_scenario)


def test_mutant_mix_by_readiness_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def first_come(self: SlotSchedule, ready: Counter[str], swap_horizon: int) -> Counter[str] | None:
        taken: Counter[str] = Counter()
        for domain, count in sorted(ready.items(), reverse=True):
            taken[domain] = min(count, self._batch_size - taken.total())
        if taken.total() < self._batch_size:
            return None
        del self._slots[: self._batch_size]
        return +taken

    monkeypatch.setattr(SlotSchedule, "try_form", first_come)
    assert found_by_some_run(random_scenario)


def test_mutant_environment_limit_ignored_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def eager_pump(self: rollout_scheduler.RolloutScheduler) -> None:
        if self._closed:
            return
        self._open_groups()
        while (spec := self._book.next_start()) is not None:
            self._ledger.start(spec.id, spec.seed, self._start(spec).name)

    monkeypatch.setattr(rollout_scheduler.RolloutScheduler, "pump", eager_pump)
    assert found_by_some_run(random_scenario)


def test_mutant_double_training_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    commit = SampleBuffer.commit

    def commit_and_return(self: SampleBuffer, index: int) -> TrainBatch:
        batch = commit(self, index)
        for group in batch.groups[:1]:
            self._ready.setdefault(group.domain, {})[group.index] = group
        return batch

    monkeypatch.setattr(SampleBuffer, "commit", commit_and_return)
    assert found_by_some_run(random_scenario)


def test_mutant_lost_wake_up_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    notify = Signal.notify
    calls = Counter[str]()

    def sleepy(self: Signal) -> None:
        calls["notify"] += 1
        if calls["notify"] % 3:
            notify(self)

    monkeypatch.setattr(Signal, "notify", sleepy)
    assert found_by_some_run(random_scenario, runs=20)


def test_mutant_retry_that_keeps_its_identity_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    failed = GroupBook.failed

    def same_attempt(self: GroupBook, failure: object) -> object:
        consequence = failed(self, failure)  # type: ignore[arg-type]
        if consequence is not None and hasattr(consequence, "attempt"):
            return msgspec.structs.replace(consequence, id=failure.id)  # type: ignore[attr-defined]
        return consequence

    monkeypatch.setattr(GroupBook, "failed", same_attempt)
    assert found_by_some_run(lambda seed: msgspec.structs.replace(random_scenario(seed), step_error=0.2, retries=3))


def test_mutant_lost_host_whose_cancelled_trajectories_stay_open_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    failed = rollout_scheduler.RolloutScheduler._failed

    def running_only(self: rollout_scheduler.RolloutScheduler, failure: EpisodeFailure) -> None:
        if failure.kind is not FailureKind.HOST_LOST or self._book.is_running(failure.id):
            failed(self, failure)

    monkeypatch.setattr(rollout_scheduler.RolloutScheduler, "_failed", running_only)
    assert found_by_some_run(random_kills)


def test_mutant_lost_host_whose_requests_stay_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its sessions stay at the engines."""
    monkeypatch.setattr(LLMProxy, "abort", lambda self, trajectory: None)
    monkeypatch.setattr(LLMProxy, "release", lambda self, trajectory: None)
    assert found_by_some_run(random_kills)


def test_mutant_dead_host_that_is_heard_again_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
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
    assert found_by_some_run(random_kills)


def test_mutant_push_that_overtakes_its_report_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    async def at_once(self: TrainingLoop, version: int) -> None: ...

    monkeypatch.setattr(TrainingLoop, "_reported", at_once)
    # Batches are there before they are asked for, and pushes take about as long as a report.
    scenario = Scenario(alpha=3, iterations=8, slow=(0.0, 0.01), train=0.05, publish=0.25, report=0.4)
    assert found_by_some_run(lambda seed: msgspec.structs.replace(scenario, seed=seed))


def test_mutant_suspension_that_keeps_excess_groups_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollout_scheduler.RolloutScheduler, "_shed_excess", lambda self: None)
    scenario = Scenario(
        alpha=0, mode="sync", weights=(6.0, 6.0, 1.0, 1.0), groups_per_batch=8, step_error=0.03, retries=0,
        starvation_limit=1, iterations=2,
    )  # fmt: skip
    assert found_by_some_run(lambda seed: msgspec.structs.replace(scenario, seed=seed), runs=80)
