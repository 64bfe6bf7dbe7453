"""Routing: the wanted class first, the bound worker kept, then stand-ins with a reason; never nothing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollart.data_plane.routing import Candidate, Choice, NoHealthyWorker, class_for, route

MIXED = [Candidate(0, "H20", load=3), Candidate(1, "H20", load=1), Candidate(2, "H800"), Candidate(3, "CPU")]


def test_the_least_loaded_of_the_wanted_class() -> None:
    assert route("H20", MIXED) == Choice(1, "H20")
    assert route("H800", MIXED) == Choice(2, "H800")
    assert route("", MIXED) == Choice(2, "H800")
    assert route("local", MIXED) == Choice(3, "CPU"), "local work prefers the cheapest class"


def test_the_bound_worker_is_kept_while_it_qualifies() -> None:
    assert route("H20", MIXED, bound=0) == Choice(0, "H20")
    assert route("H20", MIXED, bound=2) == Choice(1, "H20"), "not of the wanted class"
    sick = [Candidate(0, "H20", healthy=False), *MIXED[1:]]
    assert route("H20", sick, bound=0) == Choice(1, "H20")
    gone = [Candidate(0, "H20", healthy=False), Candidate(1, "H800", load=5), Candidate(2, "H800")]
    assert route("H20", gone, bound=1).index == 1, "a stand-in is kept while nothing better is healthy"


def test_fallbacks_say_why() -> None:
    sick = [Candidate(0, "H20", healthy=False), Candidate(1, "CPU"), Candidate(2, "H800")]
    assert route("H20", sick) == Choice(2, "H800", True, "no worker of class H20 is healthy")
    assert route("A100", MIXED) == Choice(2, "H800", True, "there is no worker of class A100")
    full = [Candidate(0, "H20", load=2, capacity=2), Candidate(1, "H800", load=1, capacity=2)]
    assert route("H20", full) == Choice(1, "H800", True, "every healthy worker of class H20 is full")


def test_when_all_are_full_the_call_queues_where_it_belongs() -> None:
    full = [
        Candidate(0, "H20", load=9, capacity=2),
        Candidate(1, "H20", load=8, capacity=2),
        Candidate(2, "CPU", True, 2, 2),
    ]
    assert route("H20", full) == Choice(1, "H20")


def test_no_healthy_worker_is_an_error() -> None:
    for candidates in ([], [Candidate(0, "H20", healthy=False)]):
        with pytest.raises(NoHealthyWorker):
            route("H20", candidates)


def test_domains_without_a_class_take_the_default() -> None:
    affinity = {"frozen_lake": "H800", "default": "H20"}
    assert [class_for(affinity, domain) for domain in ("frozen_lake", "math", "default")] == ["H800", "H20", "H20"]
    assert class_for({}, "math") == ""


candidates = st.lists(
    st.tuples(st.sampled_from(["H800", "H20", "A100", "CPU"]), st.booleans(), st.integers(0, 3), st.integers(1, 3)),
    min_size=1,
    max_size=6,
)


@given(candidates, st.sampled_from(["H800", "H20", "H200", "CPU", "local", ""]), st.none() | st.integers(0, 5))
def test_the_choice_is_healthy_and_a_fallback_only_for_cause(
    shape: list[tuple[str, bool, int, int]], wanted: str, bound: int | None
) -> None:
    crowd = [Candidate(i, name, healthy, load, room) for i, (name, healthy, load, room) in enumerate(shape)]
    healthy = [each for each in crowd if each.healthy]
    if not healthy:
        with pytest.raises(NoHealthyWorker):
            route(wanted, crowd, bound)
        return
    choice = route(wanted, crowd, bound)
    taken = crowd[choice.index]
    assert taken.healthy
    assert choice.hardware_class == taken.hardware_class
    open_ones = [each for each in healthy if each.hardware_class == wanted and each.load < each.capacity]
    if open_ones:
        assert not choice.fallback
        assert taken.hardware_class == wanted
    assert choice.fallback == bool(choice.reason)
    if any(each.load < each.capacity for each in healthy) and choice.index != bound:
        assert taken.load < taken.capacity, "nobody queues while someone has room"
