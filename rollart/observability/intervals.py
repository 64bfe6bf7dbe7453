"""Arithmetic on sets of time intervals: how long something lasted, without what overlapped it. Pure."""

from __future__ import annotations

from collections.abc import Iterable

Interval = tuple[float, float]
"""Begin and end in seconds, begin <= end."""


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """The same times as disjoint intervals in order."""
    result: list[Interval] = []
    for begin, end in sorted(intervals):
        if result and begin <= result[-1][1]:
            result[-1] = (result[-1][0], max(end, result[-1][1]))
        else:
            result.append((begin, end))
    return result


def subtract(intervals: Iterable[Interval], holes: Iterable[Interval]) -> list[Interval]:
    """The times of ``intervals`` that lie in none of ``holes``, as disjoint intervals in order."""
    cuts = [(begin, end) for begin, end in union(holes) if begin < end]
    result: list[Interval] = []
    for begin, end in union(intervals):
        for cut_begin, cut_end in cuts:
            if cut_end <= begin or cut_begin >= end:
                continue
            if cut_begin > begin:
                result.append((begin, cut_begin))
            begin = max(begin, cut_end)
        if begin < end:
            result.append((begin, end))
    return result


def total(intervals: Iterable[Interval]) -> float:
    """Seconds that are covered, overlaps counted once."""
    return sum(end - begin for begin, end in union(intervals))
