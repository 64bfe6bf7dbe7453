"""The staleness rules: admission within alpha, stale groups by policy, and when a batch should wait."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollart.config.modes import Stale
from rollart.control_plane.staleness import (
    admission_limit,
    is_group_stale,
    is_stale,
    oldest_admissible_start,
    waiting_saves_a_group,
)


@given(st.integers(0, 50), st.integers(0, 6), st.integers(0, 6), st.integers(1, 9), st.integers(1, 60))
def test_a_full_admission_started_now_fits_the_batches_left(
    version: int, alpha: int, lead: int, groups: int, iterations: int
) -> None:
    next_batch = version + lead
    limit = admission_limit(version, next_batch, alpha, groups, iterations)
    assert limit % groups == 0
    batches = range(next_batch, next_batch + limit // groups)
    assert all(not is_stale(version, batch, alpha) for batch in batches)
    assert all(batch < iterations for batch in batches)
    following = next_batch + limit // groups
    assert is_stale(version, following, alpha) or following >= iterations


def test_alpha_zero_admits_one_batch_only_at_the_newest_version() -> None:
    assert admission_limit(3, 3, 0, 8, 100) == 8
    assert admission_limit(3, 4, 0, 8, 100) == 0


def test_a_trajectory_without_a_first_token_is_never_stale() -> None:
    assert not is_stale(None, 1000, 0)
    assert oldest_admissible_start(7, 2) == 5
    assert is_stale(4, 7, 2)
    assert not is_stale(5, 7, 2)


@pytest.mark.parametrize(
    ("starts", "stale_by"),
    [
        ([5, 5], set()),
        ([4, 5], {"abort", "wait"}),
        ([4, None], {"abort", "wait"}),
        ([4, 3], {"abort", "wait", "withhold"}),
        ([None, None], set()),
        ([], set()),
    ],
)
def test_a_group_is_stale_by_its_oldest_member_or_when_all_are_withheld_or_never(
    starts: list[int | None], stale_by: set[str]
) -> None:
    policies: tuple[Stale, ...] = ("abort", "wait", "withhold", "train")
    assert {policy for policy in policies if is_group_stale(iter(starts), 5, policy)} == stale_by


@given(st.lists(st.one_of(st.none(), st.integers(0, 9)), max_size=4), st.integers(0, 9))
def test_the_policies_are_ordered_by_how_much_they_drop(starts: list[int | None], oldest: int) -> None:
    abort, wait, withhold, train = (
        is_group_stale(starts, oldest, each) for each in ("abort", "wait", "withhold", "train")
    )
    assert abort == wait
    assert abort or not withhold
    assert not train
    if withhold:
        assert all(is_stale(start, oldest, 0) for start in starts), "something could still be trained"


def test_waiting_for_the_only_slot_that_a_running_group_fits() -> None:
    slots = ["a", "a"]  # one slot a batch, two batches
    assert waiting_saves_a_group(slots, slots, 1, {"a": [1]}, {"a": [0]}), "the young one can wait for the next batch"
    assert not waiting_saves_a_group(slots, slots, 1, {"a": [0]}, {"a": [0]}), "one of the two is late anyhow"
    assert not waiting_saves_a_group(slots, slots, 1, {"a": [0]}, {"a": [1]})
    assert not waiting_saves_a_group(slots, slots, 1, {"a": [0]}, {})


def test_a_slot_is_not_lent_if_that_makes_a_running_group_late() -> None:
    lent, dealt = ["b", "a"], ["a", "b"]
    assert waiting_saves_a_group(lent, dealt, 1, {"b": [1]}, {"a": [0]})
    assert not waiting_saves_a_group(lent, dealt, 1, {"b": [1]}, {"a": [1]})


def fewest_late(deadlines: Sequence[int], batches: Sequence[int]) -> int:
    """How many groups cannot be in time, over every assignment of groups to slots."""
    for size in range(min(len(deadlines), len(batches)), 0, -1):
        for some in combinations(deadlines, size):
            for order in permutations(batches, size):
                if all(batch <= deadline for batch, deadline in zip(order, some, strict=True)):
                    return len(deadlines) - size
    return len(deadlines)


def fewest_late_behind(deadlines: Sequence[int], slots: Sequence[str], size: int, domain: str) -> int:
    """The same after the next batch has taken as many groups as it has slots, whichever those are."""
    batches = [place // size for place, owner in enumerate(slots) if owner == domain and place >= size]
    left = max(0, len(deadlines) - slots[:size].count(domain))
    return min(fewest_late(rest, batches) for rest in combinations(deadlines, left))


@st.composite
def horizons(draw: st.DrawFn) -> tuple[list[str], list[str], int]:
    size = draw(st.integers(1, 2))
    length = size * draw(st.integers(1, 3))
    dealt = draw(st.lists(st.sampled_from("ab"), min_size=length, max_size=length))
    slots = draw(st.permutations(dealt)) if draw(st.booleans()) else dealt
    return list(slots), dealt, size


DEADLINES = st.fixed_dictionaries({name: st.lists(st.integers(0, 2), max_size=2) for name in "ab"})


@settings(max_examples=300, deadline=None)
@given(horizons(), DEADLINES, DEADLINES)
def test_a_batch_waits_exactly_if_some_assignment_gets_fewer_groups_late(
    horizon: tuple[list[str], list[str], int], ready: dict[str, list[int]], running: dict[str, list[int]]
) -> None:
    slots, dealt, size = horizon
    running = {domain: deadlines for domain, deadlines in running.items() if deadlines}
    saves = False
    for domain, waiting in running.items():
        taken = slots[:size].count(domain)
        kept = max(0, len(ready[domain]) - taken)
        batches = [place // size for place, owner in enumerate(slots) if owner == domain and place >= size]
        now = min(fewest_late([*rest, *waiting], batches) for rest in combinations(ready[domain], kept))
        later = fewest_late_behind([*ready[domain], *waiting], dealt, size, domain)
        saves |= now > later
    assert waiting_saves_a_group(slots, dealt, size, ready, running) == saves
