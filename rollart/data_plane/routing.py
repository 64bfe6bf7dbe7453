"""The one routing decision: which worker gets a call. Pure; called by the LLMProxy and by every Cluster.

Declarations and configuration only name the class of hardware that a domain prefers; this function chooses
among the workers, in this order: the worker the caller is bound to, if it still qualifies; the least loaded
worker of the wanted class that is healthy and has room; the same in the classes that may stand in for it,
best first, which is a *fallback* that the caller records; and if everything is full, the least loaded
healthy worker of the first class that has one, where the call queues. Equal loads go to the lower index.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

import msgspec

from rollart.resource_plane.hardware import LOCAL, stand_ins

DEFAULT_DOMAIN = "default"


class Candidate(msgspec.Struct, frozen=True, gc=False):
    """A worker as routing sees it; ``load`` and ``capacity`` are in any unit that is common to all."""

    index: int
    hardware_class: str
    healthy: bool = True
    load: float = 0.0
    capacity: float = math.inf


class Choice(msgspec.Struct, frozen=True, gc=False):
    """Where to send it; ``reason`` says why the wanted class was not taken, if ``fallback``."""

    index: int
    hardware_class: str
    fallback: bool = False
    reason: str = ""


class NoHealthyWorker(LookupError):
    """Not one candidate is healthy."""


def class_for(affinity: Mapping[str, str], domain: str) -> str:
    """The hardware class that a domain prefers; an unknown domain is ``default``, and "" is no preference."""
    return affinity.get(domain) or affinity.get(DEFAULT_DOMAIN, "")


def route(wanted: str, candidates: Sequence[Candidate], bound: int | None = None) -> Choice:
    """Choose a candidate.

    Args:
        wanted: Hardware class; "" takes any.
        candidates: At least one of them healthy.
        bound: Index of the candidate that the caller is bound to (its session is there). It is kept while it
            is healthy and of the wanted class, or no healthy candidate is of the wanted class.

    Raises:
        NoHealthyWorker: none of them is healthy.
    """
    healthy = [each for each in candidates if each.healthy]
    if not healthy:
        raise NoHealthyWorker(f"none of the {len(candidates)} workers is healthy")
    ranked = _by_class(wanted, healthy)
    first = ranked[0]
    if bound is not None:
        for each in first:
            if each.index == bound:
                return _choice(wanted, each, candidates)
    for group in ranked:
        free = [each for each in group if each.load < each.capacity]
        if free:
            return _choice(wanted, _least_loaded(free), candidates)
    return _choice(wanted, _least_loaded(first), candidates)


def _by_class(wanted: str, healthy: list[Candidate]) -> list[list[Candidate]]:
    """Healthy candidates in groups, most suitable class first; unlisted classes come last."""
    if not wanted or all(each.hardware_class == wanted for each in healthy):
        return [healthy]
    order = _order(wanted)
    present = dict.fromkeys([*order, *(each.hardware_class for each in healthy)])
    groups = ([each for each in healthy if each.hardware_class == name] for name in present)
    return [group for group in groups if group]


@lru_cache(maxsize=64)
def _order(wanted: str) -> tuple[str, ...]:
    return (wanted, *stand_ins(wanted))


def _least_loaded(group: Iterable[Candidate]) -> Candidate:
    return min(group, key=lambda each: (each.load, each.index))


def _choice(wanted: str, taken: Candidate, candidates: Sequence[Candidate]) -> Choice:
    if wanted in ("", LOCAL, taken.hardware_class):
        return Choice(taken.index, taken.hardware_class)
    of_class = [each for each in candidates if each.hardware_class == wanted]
    if not of_class:
        reason = f"there is no worker of class {wanted}"
    elif any(each.healthy for each in of_class):
        reason = f"every healthy worker of class {wanted} is full"
    else:
        reason = f"no worker of class {wanted} is healthy"
    return Choice(taken.index, taken.hardware_class, True, reason)
