"""Selection bias, from hand-made logs."""

from __future__ import annotations

import random
from statistics import mean, pstdev

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollart.events import Event, RunStarted, TrajectoryEnded, TrajectoryScored, TrajectoryStarted
from rollart.observability.selection import Moments, Selection, SelectionFold
from rollart.types import FailureKind, Outcome, Purpose, TrajectoryId

START = RunStarted("rollart", 1, 0, 3, 2, 2, {"lake": 1.0}, {"local": "CPU"})


def started(id: TrajectoryId) -> TrajectoryStarted:
    return TrajectoryStarted(id, 1, "h")


def scored(id: TrajectoryId, tokens: int, reward: float, turns: int = 1) -> TrajectoryScored:
    return TrajectoryScored(id, reward, reward > 0, turns, tokens, 2 * tokens, 0, None, {})


def fold(*events: Event) -> SelectionFold:
    folded = SelectionFold()
    for event in events:
        folded.add(event)
    return folded


def redundant_run(groups: int, size: int, redundant: int, seed: int, cancelled: bool) -> Selection:
    """A run whose groups keep the first ``size`` members; one is done when its tokens are generated.

    Args:
        cancelled: Whether the others end at that moment, or after they have been scored.
    """
    draw = random.Random(seed)
    folded = fold(START)
    for group in range(groups):
        lengths = {TrajectoryId("lake", group, group, i): draw.randint(10, 500) for i in range(size + redundant)}
        in_order = sorted(lengths, key=lambda id: (lengths[id], id))
        for id in lengths:
            folded.add(started(id))
        for id in in_order if not cancelled else in_order[:size]:
            folded.add(scored(id, lengths[id], float(lengths[id] < 250), turns=lengths[id] // 50 + 1))
        for position, id in enumerate(in_order):
            outcome = Outcome.TRAINED if position < size else Outcome.SURPLUS
            folded.add(TrajectoryEnded(id, outcome, generated_tokens=min(lengths[id], lengths[in_order[size - 1]])))
    assert folded.held == 0
    return folded.of("lake")


def test_redundancy_that_drops_the_long_ones_shows_a_negative_length_difference() -> None:
    plain = redundant_run(200, 4, 0, seed=1, cancelled=False)
    assert plain.length_difference == plain.reward_difference == plain.turns_difference == 0.0
    biased = redundant_run(200, 4, 2, seed=1, cancelled=False)
    assert biased.length_difference is not None
    assert biased.length_difference < -0.3
    assert biased.turns_difference is not None
    assert biased.turns_difference < -0.3
    assert biased.reward_difference is not None
    assert biased.reward_difference > 0.3, "the short ones are the successful ones here"
    assert biased.outcomes == {"surplus": 400, "trained": 800}
    assert biased.unfinished == {}
    more = redundant_run(200, 4, 4, seed=1, cancelled=False)
    assert more.length_difference is not None
    assert more.length_difference < biased.length_difference


def test_what_was_cancelled_in_time_is_seen_only_as_unfinished() -> None:
    selection = redundant_run(200, 4, 2, seed=1, cancelled=True)
    assert selection.length_difference == 0.0, "everything that was scored was trained"
    surplus = selection.unfinished["surplus"]
    assert surplus.count == 400
    assert surplus.tokens.mean is not None
    assert selection.trained.tokens.mean is not None
    assert surplus.tokens.mean > selection.trained.tokens.mean, "even what they had generated is longer"


def test_the_numbers_of_a_small_log() -> None:
    ids = [TrajectoryId("lake", 0, 0, member) for member in range(6)]
    selection = fold(
        *map(started, ids),
        scored(ids[0], 10, 1.0, 1),
        scored(ids[1], 20, 0.0, 2),
        scored(ids[2], 60, 0.5, 6),
        TrajectoryEnded(ids[0], Outcome.TRAINED, generated_tokens=10),
        TrajectoryEnded(ids[1], Outcome.TRAINED, generated_tokens=20),
        TrajectoryEnded(ids[2], Outcome.EVICTED_STALE, generated_tokens=60),
        TrajectoryEnded(ids[3], Outcome.ABORTED_STALE, generated_tokens=80),
        TrajectoryEnded(ids[4], Outcome.FAILED, FailureKind.STEP_ERROR, "x", 3),
    ).of("lake")
    assert selection.outcomes == {"aborted_stale": 1, "evicted_stale": 1, "failed": 1, "trained": 2}
    assert (selection.scored.count, selection.trained.count) == (3, 2)
    assert selection.scored.tokens.mean == 30.0
    assert selection.trained.tokens.mean == 15.0
    assert selection.trained.turns.mean == 1.5
    assert selection.trained.reward.mean == 0.5
    assert selection.length_difference == pytest.approx((15 - 30) / pstdev([10, 20, 60]), rel=1e-5)
    assert selection.reward_difference == 0.0
    assert {name: (each.count, each.tokens.mean) for name, each in selection.unfinished.items()} == {
        "aborted_stale": (1, 80.0),
        "failed": (1, 3.0),
    }


def test_domains_are_apart_evaluation_is_no_part_and_a_domain_without_records_is_empty() -> None:
    lake, maths = TrajectoryId("lake", 0, 0, 0), TrajectoryId("math", 0, 1, 0)
    test = TrajectoryId("lake", 0, 0, 0, 0, Purpose.EVAL)
    folded = fold(started(lake), started(maths), started(test), scored(lake, 5, 1.0), scored(test, 500, 1.0))
    assert folded.of("lake").scored.count == 1
    assert folded.of("lake").length_difference is None, "nothing has been trained"
    assert folded.of("math").scored.count == 0
    assert folded.of("math").scored.tokens.mean is None
    assert folded.of("other").outcomes == {}


def test_what_a_crash_left_in_flight_counts_as_abandoned() -> None:
    first, second = (TrajectoryId("lake", 0, 0, member) for member in range(2))
    folded = fold(START, started(first), started(second), scored(first, 7, 1.0), START)
    assert folded.held == 0
    selection = folded.of("lake")
    assert selection.outcomes == {"abandoned": 2}
    assert selection.scored.count == 1
    assert selection.unfinished["abandoned"].count == 1


def test_memory_is_bounded_by_what_is_in_flight() -> None:
    folded = fold(START)
    for number in range(20_000):
        id = TrajectoryId("lake", number, number, 0)
        folded.add(started(id))
        folded.add(scored(id, 1 + number % 3000, number % 7 / 7))
        folded.add(TrajectoryEnded(id, Outcome.TRAINED, generated_tokens=1 + number % 3000))
        assert folded.held == 0
    selection = folded.of("lake")
    assert selection.trained.count == 20_000
    assert len(folded._domains["lake"].scored.tokens._bins) < 200


@given(st.lists(st.one_of(st.integers(0, 100_000).map(float), st.floats(-50.0, 50.0)), min_size=2, max_size=60))
def test_streamed_moments_are_those_of_the_list(values: list[float]) -> None:
    moments = Moments()
    for value in values:
        moments.add(value)
    spread = moments.spread()
    assert spread.mean == pytest.approx(mean(values), rel=1e-5, abs=1e-6)
    assert moments.deviation == pytest.approx(pstdev(values), rel=1e-6, abs=1e-6)
    ordered = sorted(values)
    middle = ordered[(len(ordered) - 1) // 2]
    assert spread.median == pytest.approx(middle, rel=0.026, abs=1e-300)
    lower, upper = ordered[(len(ordered) - 1) // 4], ordered[3 * (len(ordered) - 1) // 4]
    assert spread.iqr == pytest.approx(upper - lower, abs=0.026 * (abs(lower) + abs(upper)) + 1e-300)
