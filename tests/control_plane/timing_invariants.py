"""The invariants about moments: what may happen while weights travel, before a train step, or beside another turn."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator

from story import Story

from rollart.events import (
    EngineUpdated,
    ProtocolStep,
    TrajectoryScored,
    TrajectoryStarted,
    TurnFinished,
    VersionPublished,
)
from rollart.types import TrajectoryId


def timing_violations(story: Story) -> list[str]:
    """Every invariant about moments that the story breaks, in words."""
    return [
        *_boundaries(story),
        *_quiet_updates(story),
        *_order(story),
        *_lock_step(story),
        *_scored_together(story),
    ]


def _whole_turns(story: Story) -> Iterator[tuple[float, TurnFinished]]:
    """The turns of trajectories that were scored, with the times of their ends; none of them was aborted."""
    whole = {event.id for event in story.events if isinstance(event, TrajectoryScored)}
    for time, event in story.timed():
        if isinstance(event, TurnFinished) and event.id in whole:
            yield time, event


def _quiet_updates(story: Story) -> list[str]:
    """Invariant 4, the part that the protocol shows: from suspend to the end of the swap no engine generates."""
    ends = [time for time, _ in _whole_turns(story)]
    found = []
    suspended = 0.0
    for time, event in story.timed():
        if not isinstance(event, ProtocolStep):
            continue
        if event.step == "suspend":
            suspended = time
        elif event.step == "update":
            number = bisect_left(ends, time - 1e-9) - bisect_right(ends, suspended + 1e-9)
            if number > 0:
                found.append(f"update: {number} turns ended between suspend at {suspended:.3f} and swap at {time:.3f}")
    return found


def _boundaries(story: Story) -> list[str]:
    """Invariant 4, the part that engines show: a turn's tokens carry the versions that its engine held meanwhile."""
    updates: dict[int, list[tuple[float, int]]] = {}
    turns: dict[tuple[TrajectoryId, int], tuple[int, float, float]] = {}
    for time, event in story.timed():
        if isinstance(event, EngineUpdated):
            updates.setdefault(event.engine.engine, []).append((time, event.version))
        elif isinstance(event, TurnFinished):
            turns[event.id, event.turn] = event.engine.engine, time - event.seconds, time
    found = []
    for _, _, _, member in story.members():
        for number, turn in enumerate(member.turns()):
            engine, began, ended = turns[member.id, number]
            times = [time for time, _ in updates.get(engine, ())]
            held = [0, *(version for _, version in updates.get(engine, ()))]
            first, last = turn.versions[0].version, turn.versions[-1].version
            at_end = {held[bisect_left(times, ended - 1e-9)], held[bisect_right(times, ended + 1e-9)]}
            if first < held[bisect_left(times, began - 1e-9)] or last not in at_end:
                found.append(f"versions: turn {number} of {member.id} has {turn.versions}, its engine held {at_end}")
    return found


def _order(story: Story) -> list[str]:
    """The protocol's order: which push and which update come before a train step begins."""
    switches = story.scenario.switches
    pushed: dict[int, float] = {}
    taken: dict[int, float] = {}
    found = []
    for time, event in story.timed():
        if isinstance(event, VersionPublished):
            pushed[event.version] = time
        if isinstance(event, EngineUpdated):  # also by a resumed run, which pushes the checkpoint's version first
            pushed.setdefault(event.version, time)
            taken[event.version] = time
        if not isinstance(event, ProtocolStep) or event.step != "train_step" or event.index == 0:
            continue
        began = time - event.seconds + 1e-9
        if switches.transfer == "blocking" and not pushed.get(event.index, float("inf")) <= began:
            found.append(f"order: train_step({event.index}) began before its weights were pushed")
        if switches.update == "at_batch" and not taken.get(event.index, float("inf")) <= began:
            found.append(f"order: train_step({event.index}) began before the engines had its weights")
    return found


def _lock_step(story: Story) -> list[str]:
    """With lock-step interaction no request leaves before the turns of the others have ended."""
    if story.scenario.switches.interaction != "batch":
        return []
    turns = sorted((time - event.seconds, time, event.id, event.turn) for time, event in _whole_turns(story))
    found = []
    last, over, by = -1.0, 0.0, ""
    for began, ended, id, turn in turns:
        if began > last + 1e-9 and began < over - 1e-9:
            found.append(f"lock-step: turn {turn} of {id} began at {began:.3f}, before {by} ended at {over:.3f}")
        last = max(last, began)
        over, by = max((over, by), (ended, f"turn {turn} of {id}"))
    return found


def _scored_together(story: Story) -> list[str]:
    """With stage-wise scoring nobody who ran when another was scored takes a turn afterwards."""
    if story.scenario.switches.scoring != "batch":
        return []
    began: dict[TrajectoryId, float] = {}
    last_turn: dict[TrajectoryId, float] = {}
    for time, event in story.timed():
        if isinstance(event, TrajectoryStarted):
            began[event.id] = time
        elif isinstance(event, TurnFinished) and event.id in began:
            last_turn[event.id] = time
    scored = {time for time, event in story.timed() if isinstance(event, TrajectoryScored)}
    return [
        f"scoring: somebody was scored at {time:.3f}, {id} played until {until:.3f}"
        for time in scored
        for id, until in last_turn.items()
        if began[id] < time < until - 1e-9
    ]
