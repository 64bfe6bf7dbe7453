"""The slot schedule keeps the trained mix within tolerance of the configured shares."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollart.control_plane.mix import SlotSchedule, SlotState


@st.composite
def shares(draw: st.DrawFn) -> dict[str, float]:
    weights = draw(st.lists(st.floats(0.05, 10.0), min_size=1, max_size=6))
    return {f"d{i}": weight / sum(weights) for i, weight in enumerate(weights)}


@given(shares(), st.integers(1, 9))
def test_every_prefix_of_the_slots_is_within_one_group_of_the_shares(mix: dict[str, float], batch: int) -> None:
    schedule = SlotSchedule(mix, batch)
    counts: Counter[str] = Counter()
    for slot, domain in enumerate(schedule.upcoming(80), start=1):
        counts[domain] += 1
        for name, share in mix.items():
            assert abs(counts[name] - share * slot) < 1.0


@given(shares(), st.integers(1, 6), st.sampled_from([1.0, 1.5, 3.0]), st.data())
def test_borrowing_stays_within_tolerance_and_never_changes_the_horizon(
    mix: dict[str, float], batch: int, tolerance: float, data: st.DataObject
) -> None:
    schedule = SlotSchedule(mix, batch, tolerance)
    trained: Counter[str] = Counter()
    for formed in range(1, 12):
        horizon = schedule.horizon(2 * batch)
        ready = {name: data.draw(st.integers(0, 2 * batch), label=name) for name in mix}
        taken = schedule.try_form(ready, 2 * batch)
        if taken is None:
            assert schedule.horizon(2 * batch) == horizon
            taken = schedule.try_form(horizon, 2 * batch)
            assert taken is not None, "a batch whose horizon is ready can always be formed"
        else:
            assert all(taken[name] <= ready[name] for name in mix)
        assert sum(taken.values()) == batch
        assert taken + schedule.horizon(batch) == horizon
        trained += taken
        for name, share in mix.items():
            assert abs(trained[name] - share * batch * formed) <= tolerance + 1e-6


def test_a_late_domain_is_replaced_by_a_ready_one_within_the_tolerance() -> None:
    schedule = SlotSchedule({"slow": 0.5, "fast": 0.5}, groups_per_batch=2, tolerance=1.0)
    assert schedule.horizon(2) == {"slow": 1, "fast": 1}
    assert schedule.try_form({"fast": 2}, swap_horizon=4) == {"fast": 2}
    assert schedule.horizon(2) == {"slow": 2}, "the later batch pays the slot back"
    assert schedule.try_form({"fast": 2}, swap_horizon=4) is None


def test_a_batch_that_would_rather_wait_is_not_formed_and_nothing_changes() -> None:
    schedule = SlotSchedule({"slow": 0.5, "fast": 0.5}, groups_per_batch=2, tolerance=1.0)
    asked: list[tuple[list[str], list[str]]] = []

    def rather_wait(slots: Sequence[str], dealt: Sequence[str]) -> bool:
        asked.append((list(slots), list(dealt)))
        return len(asked) == 1

    before = schedule.upcoming(4), schedule.state()
    assert schedule.try_form({"fast": 2}, 4, rather_wait) is None
    assert (schedule.upcoming(4), schedule.state()) == before
    (slots, dealt) = asked[0]
    assert dealt == before[0]
    assert slots[:2] == ["fast", "fast"], "as they would be after borrowing"
    assert Counter(slots) == Counter(dealt)
    assert schedule.try_form({"fast": 2}, 4, rather_wait) == {"fast": 2}
    assert schedule.upcoming(2) == slots[2:]


def test_nobody_is_asked_about_a_batch_that_cannot_be_formed() -> None:
    def never(slots: Sequence[str], dealt: Sequence[str]) -> bool:
        raise AssertionError("asked")

    schedule = SlotSchedule({"a": 1.0}, groups_per_batch=2)
    assert schedule.try_form({"a": 1}, 4, never) is None


def test_suspension_redistributes_the_share() -> None:
    schedule = SlotSchedule({"a": 0.5, "b": 0.25, "c": 0.25}, groups_per_batch=4)
    schedule.try_form(schedule.horizon(4), 4)
    schedule.suspend("a")
    assert schedule.active == ("b", "c")
    assert schedule.horizon(8) == {"b": 4, "c": 4}
    schedule.suspend("b")
    with pytest.raises(ValueError, match="last one"):
        schedule.suspend("c")


def journey(state: SlotState) -> SlotState:
    """A state after its journey through a file."""
    return msgspec.json.decode(msgspec.json.encode(state), type=SlotState)


@given(shares(), st.integers(1, 6), st.sampled_from([1.0, 3.0]), st.booleans(), st.data())
def test_a_resumed_schedule_continues_where_the_first_one_stopped(
    mix: dict[str, float], batch: int, tolerance: float, unfinished: bool, data: st.DataObject
) -> None:
    schedule = SlotSchedule(mix, batch, tolerance)
    suspended = data.draw(st.sampled_from([None, *mix]), label="suspended") if len(mix) > 1 else None
    for number in range(4):
        if number == 2 and suspended is not None:
            schedule.suspend(suspended)
        before = schedule.upcoming(20 * batch)
        formed = schedule.try_form({name: data.draw(st.integers(0, 2 * batch)) for name in mix}, 2 * batch)
        formed = formed or schedule.try_form(schedule.horizon(batch), batch)

    if unfinished:
        resumed = SlotSchedule(mix, batch, tolerance, journey(schedule.state(formed)))
        assert resumed.next_batch == 3
        assert resumed.horizon(20 * batch) == Counter(before), "the batch counts as not formed"
        assert resumed.try_form(formed or {}, 2 * batch) == formed
    else:
        resumed = SlotSchedule(mix, batch, tolerance, journey(schedule.state()))

    assert resumed.next_batch == schedule.next_batch == 4
    assert resumed.active == schedule.active
    assert resumed.suspended == (() if suspended is None else (suspended,))
    assert resumed.upcoming(20 * batch) == schedule.upcoming(20 * batch)
    for _ in range(4):
        ready = {name: data.draw(st.integers(0, 2 * batch)) for name in mix}
        assert resumed.try_form(ready, 2 * batch) == schedule.try_form(ready, 2 * batch)
        assert resumed.upcoming(20 * batch) == schedule.upcoming(20 * batch)


def test_a_suspension_while_a_batch_is_trained_is_kept_if_the_batch_is_not() -> None:
    schedule = SlotSchedule({"a": 0.5, "b": 0.5}, groups_per_batch=2)
    schedule.try_form(schedule.horizon(2), 2)
    formed = schedule.try_form(schedule.horizon(2), 2)
    schedule.suspend("a")

    resumed = SlotSchedule({"a": 0.5, "b": 0.5}, 2, state=journey(schedule.state(formed)))

    assert resumed.next_batch == 1
    assert resumed.suspended == ("a",)
    assert resumed.upcoming(4) == ["b"] * 4


def test_other_weights_after_a_resume_count_the_mix_anew() -> None:
    schedule = SlotSchedule({"a": 0.5, "b": 0.5}, groups_per_batch=4)
    for _ in range(3):
        schedule.try_form(schedule.horizon(4), 4)

    resumed = SlotSchedule({"a": 0.75, "b": 0.25}, 4, state=journey(schedule.state()))

    assert resumed.next_batch == 3
    assert resumed.horizon(8) == {"a": 6, "b": 2}
