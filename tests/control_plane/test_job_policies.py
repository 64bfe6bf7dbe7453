"""What the modes and their switches promise of a whole run."""

from __future__ import annotations

from collections import Counter

import msgspec
import pytest
from invariants import violations
from scenarios import Scenario
from story import Story
from virtual_job import play

from rollart.config.modes import Mode
from rollart.events import BatchFormed, TrajectoryEnded, TrajectoryScored, TurnFinished
from rollart.types import Outcome, Purpose

LONG_TAIL = Scenario(
    seed=5, slow={"median": 0.2, "sigma": 1.2, "max": 1.9}, train=0.01, publish=0.0, iterations=8, mix_tolerance=6.0
)
"""Rollout is far slower than training, and the steps of one domain have a long tail."""


def staleness(story: Story) -> Counter[int]:
    """Of every trained trajectory."""
    return Counter(
        batch.index - member.start_version
        for batch, group, position, member in story.members()
        if position not in group.withheld and member.start_version is not None
    )


def outcomes(story: Story) -> Counter[Outcome]:
    return Counter(event.outcome for event in story.events if isinstance(event, TrajectoryEnded))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("alpha", [1, 2])
def test_areal_trains_beyond_the_bound_that_rollart_keeps_on_the_same_scenario(alpha: int, seed: int) -> None:
    """The bound of ``areal`` holds for the number in flight: one that takes long is trained however stale it is."""
    scenario = msgspec.structs.replace(LONG_TAIL, alpha=alpha, seed=seed)
    rollart = play(msgspec.structs.replace(scenario, mode="rollart"))
    areal = play(msgspec.structs.replace(scenario, mode="areal"))
    assert violations(rollart) == []
    assert violations(areal) == [], "all else holds: it limits what is started"
    assert max(staleness(rollart)) == alpha
    assert max(staleness(areal)) > alpha
    assert outcomes(rollart)[Outcome.ABORTED_STALE] + outcomes(rollart)[Outcome.EVICTED_STALE] > 0
    assert outcomes(areal)[Outcome.ABORTED_STALE] + outcomes(areal)[Outcome.EVICTED_STALE] == 0


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


def test_the_staleness_of_a_batch_counts_only_what_is_trained() -> None:
    crowded = msgspec.structs.replace(LONG_TAIL, group_size=4, max_environments=8, stale="withhold")
    story = play(crowded)
    formed = Counter[int]()
    for event in story.events:
        if isinstance(event, BatchFormed):
            formed.update(event.staleness)
    assert formed == staleness(story)
    assert max(formed) <= crowded.alpha


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


def test_evaluations_are_no_part_of_the_lock_step() -> None:
    story = play(Scenario(seed=3, mode="sync", iterations=2, evaluate_every=1))
    assert violations(story) == []
    assert any(isinstance(e, TurnFinished) and e.id.purpose is Purpose.EVAL for e in story.events)
