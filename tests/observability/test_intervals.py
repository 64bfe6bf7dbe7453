from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rollart.observability.intervals import Interval, subtract, total, union

SPANS = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 10)).map(lambda s: (float(s[0]), float(s[0] + s[1]))))


def _covers(intervals: list[Interval], point: float) -> bool:
    return any(begin <= point < end for begin, end in intervals)


@given(SPANS, SPANS)
def test_subtract_keeps_exactly_what_no_hole_covers(intervals: list[Interval], holes: list[Interval]) -> None:
    left = subtract(intervals, holes)
    for half in range(100):
        point = half / 2
        assert _covers(left, point) == (_covers(intervals, point) and not _covers(holes, point))
    assert union(left) == left


@given(SPANS)
def test_total_counts_overlaps_once(intervals: list[Interval]) -> None:
    assert total(intervals) == sum(_covers(intervals, float(second)) for second in range(50))
