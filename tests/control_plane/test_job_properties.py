"""The design's invariants under random schedules, latencies, failures and settings, in virtual time.

``violations`` is trusted because it finds the seeded mutants of ``test_job_mutants.py``.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import get_args, get_type_hints

import pytest
from families import (
    MODES,
    Family,
    any_run,
    by_seed,
    scenarios,
    that_is_pressed,
    that_waits,
    with_a_death,
    with_lost_hosts,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from invariants import violations
from scenarios import Scenario
from virtual_job import play

from rollart.config.modes import PRESETS, Mode, Switches
from rollart.events import CheckpointSaved, DomainSuspended, Evaluated, Event, TrajectoryEnded, WorkerRestarted
from rollart.runtime.runtime import WorkerLost
from rollart.types import FailureKind, Outcome

VALUES = {name: kind for name, kind in get_type_hints(Switches).items() if name != "alpha"}
"""The switches and their types."""

QUICK = settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow])
"""Of each mode; the slow tests play some hundreds of each."""


@pytest.mark.parametrize("mode", MODES)
@QUICK
@given(data=st.data())
def test_every_invariant_holds_in_every_random_run(mode: Mode, data: st.DataObject) -> None:
    assert violations(play(data.draw(scenarios(any_run, mode)))) == []


@pytest.mark.parametrize("mode", MODES)
@QUICK
@given(data=st.data())
def test_every_invariant_holds_when_hosts_die_at_random_moments(mode: Mode, data: st.DataObject) -> None:
    assert violations(play(data.draw(scenarios(with_lost_hosts, mode)))) == []


@QUICK
@given(scenarios(with_a_death))
def test_every_invariant_but_the_end_holds_when_an_engine_or_the_trainer_dies(scenario: Scenario) -> None:
    assert violations(play(scenario)) == []


@QUICK
@given(scenarios(that_waits))
def test_nothing_becomes_stale_under_policy_wait_without_redundancy_and_failures(scenario: Scenario) -> None:
    assert violations(play(scenario)) == []


@pytest.mark.parametrize("mode", MODES)
def test_the_family_has_every_value_of_every_switch_in_every_mode(mode: Mode) -> None:
    draw = random.Random(0)
    seen = {
        (name, value)
        for switches in (any_run(draw, mode).switches for _ in range(100))
        for name, value in switches._asdict().items()
        if name != "alpha"
    }
    expected = {(name, value) for name, kind in VALUES.items() for value in get_args(kind)}
    if PRESETS[mode].alpha == 0:
        expected.discard(("update", "at_batch"))  # refused: batch k needs trajectories that start at W_k
    assert seen == expected


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("family", [any_run, with_lost_hosts, with_a_death, that_waits, that_is_pressed])
def test_a_thousand_random_runs(family: Family) -> None:
    for seed in range(1000):
        scenario = by_seed(family, seed)
        assert violations(play(scenario)) == [], scenario


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


def test_the_same_scenario_gives_the_same_events() -> None:
    scenario = by_seed(with_lost_hosts, 11)
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
