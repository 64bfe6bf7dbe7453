"""What the modes and their switches promise of a whole run, and what a run that hangs says."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from invariants import Story, violations
from scenarios import NEVER, Scenario, random_scenario
from virtual_job import Hang, play

from rollart.config.modes import Mode
from rollart.control_plane import rollout_scheduler
from rollart.control_plane.barrier import Barrier
from rollart.control_plane.waits import Signal
from rollart.data_plane.training.emulated import EmulatedLearner
from rollart.events import TrajectoryEnded, TrajectoryScored, TurnFinished
from rollart.simulation.virtual_loop import Deadlock
from rollart.types import Outcome, Purpose, TrainBatch, TrainReport

LONG_TAIL = Scenario(seed=5, slow=(0.0, 1.9), train=0.01, publish=0.0, iterations=8, mix_tolerance=6.0)
"""Rollout is far slower than training, one domain far slower than the other."""


def staleness(story: Story) -> Counter[int]:
    """Of every trained trajectory."""
    return Counter(
        batch.index - member.start_version
        for batch in story.batches
        for group in batch.groups
        for position, member in enumerate(group.members)
        if position not in group.withheld and member.start_version is not None
    )


def outcomes(story: Story) -> Counter[Outcome]:
    return Counter(event.outcome for event in story.events if isinstance(event, TrajectoryEnded))


@pytest.mark.parametrize("alpha", [1, 2])
def test_areal_trains_beyond_the_bound_that_rollart_keeps_on_the_same_scenario(alpha: int) -> None:
    scenario = msgspec.structs.replace(LONG_TAIL, alpha=alpha)
    rollart = play(msgspec.structs.replace(scenario, mode="rollart"))
    areal = play(msgspec.structs.replace(scenario, mode="areal"))
    assert (rollart.error, areal.error) == (None, None)
    assert max(staleness(rollart)) == alpha
    assert max(staleness(areal)) > alpha
    assert outcomes(areal)[Outcome.ABORTED_STALE] + outcomes(areal)[Outcome.EVICTED_STALE] == 0
    assert violations(areal) == [], "all else holds: it limits what is started"


def test_the_bound_of_rollart_is_the_switch_not_the_transfer() -> None:
    """The same mode with the one switch that areal has otherwise violates it too."""
    story = play(msgspec.structs.replace(LONG_TAIL, stale="train"))
    assert story.error is None
    assert max(staleness(story)) > 1


def test_the_policies_differ_in_what_becomes_of_a_slow_trajectory() -> None:
    """Too few environments for a group, so that its members start at different versions."""
    crowded = msgspec.structs.replace(LONG_TAIL, group_size=4, max_environments=8)
    ended = {policy: outcomes(play(msgspec.structs.replace(crowded, stale=policy))) for policy in ("abort", "withhold")}
    assert ended["abort"][Outcome.ABORTED_STALE] > 0
    assert ended["abort"][Outcome.WITHHELD] == 0
    assert ended["withhold"][Outcome.WITHHELD] > 0


def waiting_scenario(seed: int) -> Scenario:
    """Policy wait without anything that ends a trajectory early: no redundancy, no failures, no suspensions."""
    draw = random.Random(seed)
    return msgspec.structs.replace(
        random_scenario(seed),
        mode="rollart",
        stale="wait",
        update=None,
        alpha=draw.choice([0, 1, 1, 2, 3]),
        redundant_members=0,
        redundant_groups=0,
        step_error=0.0,
        reset_error=0.0,
        step_hang=0.0,
        slow=(0.0, draw.choice([0.05, 0.5, 1.9])),
        starvation_limit=NEVER,
    )


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(0, 2**32))
def test_nothing_becomes_stale_under_policy_wait_without_redundancy_and_failures(seed: int) -> None:
    story = play(waiting_scenario(seed))
    assert violations(story) == []
    stale = outcomes(story)
    assert stale[Outcome.ABORTED_STALE] + stale[Outcome.EVICTED_STALE] == 0


def test_in_lock_step_nobody_asks_for_turn_t_plus_1_before_the_others_have_ended_turn_t() -> None:
    """All start together here, so turn t of one is turn t of all: rounds follow each other without overlap."""
    story = play(Scenario(seed=3, mode="sync", iterations=1, groups_per_batch=6, turns=4, slow=(0.0, 1.0)))
    assert violations(story) == []
    rounds: dict[int, list[tuple[float, float]]] = {}
    for time, event in story.timed():
        if isinstance(event, TurnFinished):
            rounds.setdefault(event.turn, []).append((time - event.seconds, time))
    assert len(rounds[0]) == 12
    assert len(rounds) > 2
    for turn in range(1, len(rounds)):
        assert min(began for began, _ in rounds[turn]) >= max(ended for _, ended in rounds[turn - 1])
    apart = play(Scenario(seed=3, mode="sync_plus", iterations=1, groups_per_batch=6, turns=4, slow=(0.0, 1.0)))
    turns = [(time - e.seconds, time, e.turn) for time, e in apart.timed() if isinstance(e, TurnFinished)]
    assert any(first[2] > second[2] and first[0] < second[1] for first in turns for second in turns), "no lock-step"


def test_with_stage_wise_scoring_all_of_a_batch_are_scored_when_the_last_has_played() -> None:
    for scoring, together in (("batch", True), ("trajectory", False)):
        story = play(Scenario(seed=3, mode="sync", scoring=scoring, iterations=1, slow=(0.0, 1.0)))
        assert violations(story) == []
        scored = [time for time, event in story.timed() if isinstance(event, TrajectoryScored)]
        assert (max(scored) - min(scored) < 0.01) == together


@pytest.mark.parametrize("mode", ["sync", "sync_plus"])
def test_synchronous_modes_train_what_the_newest_weights_made(mode: Mode) -> None:
    story = play(Scenario(seed=3, mode=mode, iterations=4, engines=2, hosts=2))
    assert violations(story) == []
    assert set(staleness(story)) == {0}


def test_one_off_trains_each_batch_one_version_behind_and_no_trajectory_sees_two() -> None:
    story = play(Scenario(seed=3, mode="one_off", iterations=5, slow=(0.0, 0.05)))
    assert violations(story) == []
    assert set(staleness(story)) <= {0, 1}
    assert staleness(story)[1] > 0


def hang(story: Story) -> str:
    """What a run that hangs says."""
    assert isinstance(story.error, Hang | Deadlock), story.error
    return str(story.error)


def test_a_policy_that_waits_for_ever_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollout_scheduler, "waiting_saves_a_group", lambda *arguments: True)
    message = hang(play(Scenario(seed=4, stale="wait")))
    assert "get_batch(0) waits" in message
    assert "next batch 0 needs" in message


def test_a_barrier_that_loses_a_wake_up_is_named_with_who_waits_for_whom(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that has played its last turn is not taken out of the barrier of turns."""

    def forgetful(self: Barrier[object], key: object) -> None:
        self._arrived.pop(key, None)

    monkeypatch.setattr(Barrier, "excuse", forgetful)
    message = hang(play(Scenario(seed=3, mode="sync", iterations=1)))
    assert "get_batch(0) waits" in message
    assert "requests wait for" in message
    assert "others, first d" in message


def test_a_lost_wake_up_is_named_with_who_waits_for_whom(monkeypatch: pytest.MonkeyPatch) -> None:
    """The training side is not woken by a finished trajectory."""
    receive, notify = rollout_scheduler.RolloutScheduler.receive, Signal.notify
    deaf: list[bool] = []

    def unheard(self: rollout_scheduler.RolloutScheduler, *arguments: object) -> None:
        deaf.append(True)
        receive(self, *arguments)  # type: ignore[arg-type]
        deaf.pop()

    monkeypatch.setattr(rollout_scheduler.RolloutScheduler, "receive", unheard)
    monkeypatch.setattr(Signal, "notify", lambda self: None if deaf else notify(self))
    message = hang(play(Scenario(seed=4)))
    assert "get_batch(0) waits" in message
    assert "groups ready" in message


def test_a_trainer_that_never_answers_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(self: EmulatedLearner, batch: TrainBatch) -> TrainReport:
        await asyncio.get_running_loop().create_future()
        raise AssertionError

    monkeypatch.setattr(EmulatedLearner, "train_step", never)
    message = hang(play(Scenario(seed=4)))
    assert "the driver waits" in message
    assert "train-0.train_step" in message


def test_evaluations_are_no_part_of_the_lock_step() -> None:
    story = play(Scenario(seed=3, mode="sync", iterations=2, evaluate_every=1))
    assert violations(story) == []
    assert any(isinstance(e, TurnFinished) and e.id.purpose is Purpose.EVAL for e in story.events)
