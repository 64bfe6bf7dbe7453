"""The design's invariants (architecture, section 7), as far as virtual time can show them.

``breaches`` looks at a live control plane, ``violations`` at everything that has happened; both list in words what is
broken.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterator

import msgspec
from scenarios import NEVER, Scenario

from rollart.control_plane.groups import MemberState
from rollart.control_plane.outbox import FULL
from rollart.control_plane.rollout_scheduler import StarvedError
from rollart.control_plane.wiring import Wiring
from rollart.events import (
    Alarm,
    BatchFormed,
    DomainSuspended,
    EngineUpdated,
    Event,
    ProtocolStep,
    RunEnded,
    TrajectoryEnded,
    TrajectoryScored,
    TrajectoryStarted,
    TurnFinished,
    VersionPublished,
)
from rollart.types import FailureKind, Outcome, Purpose, TrainBatch, TrajectoryId


class Story(msgspec.Struct):
    """What happened."""

    scenario: Scenario
    events: list[Event]
    times: list[float]
    """Of the events, in virtual seconds."""
    batches: list[TrainBatch]
    error: BaseException | None
    breaches: list[str]
    """Bounds that were exceeded at some moment."""
    starts: int = 1
    """Once, and once more for each time that it was resumed."""
    stops: int = 0
    """How often the user stopped it."""

    def timed(self) -> Iterator[tuple[float, Event]]:
        return zip(self.times, self.events, strict=True)


def breaches(wiring: Wiring, scenario: Scenario) -> list[str]:
    """Invariant 7: every queue, cache and buffer is within its bound; at any moment."""
    scheduler, proxy, loop = wiring.scheduler, wiring.proxy, wiring.loop
    alpha, environments = scenario.switches.alpha, scenario.max_environments
    alive = 2 * environments  # evaluation has as many permits of its own
    sizes = {
        "environments": (scheduler.environments, environments),
        "live groups": (scheduler.live_groups, (alpha + 1) * scenario.groups_per_batch + scenario.redundant_groups),
        "requests": (proxy.running + proxy.waiting, alive),
        "sessions at the LLMProxy": (proxy.sessions, alive),
        "trajectories on hosts": (len(scheduler._host_of), alive),
        "counts of generated tokens": (len(scheduler._generated), alive),
        "manifests": (len(loop._manifests), scenario.iterations + 1),
        "waits": (len(wiring.scheduler._changed._waiters), 8),
    }
    for host in wiring.hosts:
        sizes[f"messages to {host.name}"] = (len(host._outbox), 4 * alive)
    for engine in proxy._engines:
        sizes[f"messages to engine {engine.address.engine}"] = (len(engine.outbox), 2 * alive + FULL)
    return [f"bound: {size} {name}, at most {most}" for name, (size, most) in sizes.items() if size > most]


def unaccounted(wiring: Wiring) -> list[str]:
    """Invariant 2 between two turns of the loop: each trajectory in flight is held by exactly one place."""
    cores, scheduler = wiring.cores, wiring.scheduler
    holders: Counter[TrajectoryId] = Counter(id for id in scheduler._host_of if id.purpose is Purpose.TRAIN)
    holders.update(m.id for group in cores.book for m in group.members if m.state is MemberState.SCORED)
    leased = () if cores.buffer.lease is None else cores.buffer.lease.groups
    holders.update(member.id for group in (*cores.buffer, *leased) for member in group.members)
    open_ = Counter(cores.ledger.open)
    found = [f"held: {id} is in flight, but nobody has it" for id in open_ - holders]
    found += [f"held: {id} is held {holders[id]} times, in flight {open_[id]}" for id in holders - open_]
    started, ended = cores.ledger.started, cores.ledger.outcomes.total()
    if started != ended + cores.ledger.in_flight:
        found.append(f"outcome: {started} started, {ended} ended, {cores.ledger.in_flight} in flight")
    protocol = wiring.protocol
    if not protocol.engines <= protocol.announced <= protocol.trained:
        found.append(f"versions: {protocol.describe()}")
    return found


def violations(story: Story) -> list[str]:
    """Every invariant of the design that the story breaks, in words."""
    found = [*story.breaches]
    starved = isinstance(story.error, StarvedError) and story.scenario.starvation_limit < NEVER
    if story.error is not None and not starved:
        found.append(f"liveness: {type(story.error).__name__}: {story.error}")
    found += _staleness(story)
    found += _outcomes(story)
    found += _trained_once(story)
    found += _versions(story)
    found += _mix(story)
    found += _lost_hosts(story)
    found += _boundaries(story)
    found += _order(story)
    found += _lock_step(story)
    found += _scored_together(story)
    stopped = story.stops == story.starts
    if story.error is None and not stopped and len(story.batches) != story.scenario.iterations:
        found.append(f"liveness: {len(story.batches)} batches of {story.scenario.iterations}")
    return found


def _staleness(story: Story) -> list[str]:
    """Invariant 1, of what is trained: policy ``train`` has no such bound."""
    alpha, _, stale, *_ = story.scenario.switches
    if stale == "train":
        return []
    return [
        f"staleness: {member.id} started at {member.start_version} in batch {batch.index}"
        for batch in story.batches
        for group in batch.groups
        for position, member in enumerate(group.members)
        if position not in group.withheld
        and (member.start_version is None or not 0 <= batch.index - member.start_version <= alpha)
    ]


def _outcomes(story: Story) -> list[str]:
    """Invariant 2."""
    open_: Counter[TrajectoryId] = Counter()
    known: set[TrajectoryId] = set()
    found = []
    for event in story.events:
        if isinstance(event, TrajectoryStarted):
            open_[event.id] += 1
            if event.id in known:
                found.append(f"outcome: {event.id} was started twice")
            known.add(event.id)
        elif isinstance(event, TrajectoryEnded):
            open_[event.id] -= 1
            if open_[event.id] != 0:
                found.append(f"outcome: {event.id} ended without being in flight")
            if story.error is None and not story.stops and event.message.startswith("not confirmed"):
                found.append(f"outcome: {event.id} was never confirmed by its host")
    found += [f"outcome: {id} has {count} missing outcomes" for id, count in open_.items() if count > 0]
    ended = [event for event in story.events if isinstance(event, RunEnded)]
    if len(ended) != story.starts:
        found.append(f"outcome: the run ended {len(ended)} times")
    return found


def _trained_once(story: Story) -> list[str]:
    """Invariant 8: what is in a batch is trained, once; nothing else is."""
    in_batches = Counter(member.id for batch in story.batches for group in batch.groups for member in group.members)
    trained = Counter(
        event.id
        for event in story.events
        if isinstance(event, TrajectoryEnded) and event.outcome in (Outcome.TRAINED, Outcome.WITHHELD)
    )
    found = [f"trained: {id} is in {count} batches" for id, count in in_batches.items() if count > 1]
    if story.error is None and trained != in_batches:
        found.append(f"trained: {sum((in_batches - trained).values())} members of batches have no trained outcome")
    found += [f"trained: {id} is an evaluation" for id in in_batches if id.purpose is Purpose.EVAL]
    sizes = {len(group.members) for batch in story.batches for group in batch.groups}
    if sizes - {story.scenario.group_size}:
        found.append(f"group: sizes {sizes}")
    return found


def _versions(story: Story) -> list[str]:
    """Invariant 4, the part a trajectory shows: versions never fall."""
    found = []
    for batch in story.batches:
        for group in batch.groups:
            for member in group.members:
                versions = [run.version for turn in member.turns() for run in turn.versions]
                if versions != sorted(versions) or versions[-1] > batch.index:
                    found.append(f"versions: {member.id} has {versions} in batch {batch.index}")
    return found


def _mix(story: Story) -> list[str]:
    """Invariant 5, over the active domains: a suspension counts the mix anew."""
    weights = {f"d{number}": weight for number, weight in enumerate(story.scenario.weights)}
    taken: Counter[str] = Counter()
    found = []
    for event in story.events:
        if isinstance(event, DomainSuspended):
            weights.pop(event.domain, None)
            taken.clear()
        if isinstance(event, BatchFormed):
            taken.update(event.groups)
            for domain, weight in weights.items():
                share = weight / sum(weights.values())
                if abs(taken[domain] - share * taken.total()) > story.scenario.mix_tolerance + 1e-6:
                    found.append(f"mix: {dict(taken)} after batch {event.index}")
    return found


def _lost_hosts(story: Story) -> list[str]:
    """Invariant 8, for hosts: when one is back, all that ran on it before has ended, for no fault of its own."""
    on: dict[str, set[TrajectoryId]] = {}
    tries: Counter[tuple[str, int, int, int]] = Counter()
    found = []
    for event in story.events:
        if isinstance(event, TrajectoryStarted):
            on.setdefault(event.host, set()).add(event.id)
            tries[event.id.domain, event.id.task, event.id.group, event.id.member] += 1
        elif isinstance(event, (TrajectoryScored, TrajectoryEnded)):
            for running in on.values():
                running.discard(event.id)
            if isinstance(event, TrajectoryEnded) and event.failure is FailureKind.HOST_LOST:
                tries[event.id.domain, event.id.task, event.id.group, event.id.member] -= 1
        elif isinstance(event, Alarm) and "is lost" in event.message:
            found += [f"host: {id} runs on the lost {event.subject}" for id in on.get(event.subject, ())]
    found += [
        f"host: {key} used {count - 1} retries" for key, count in tries.items() if count > story.scenario.retries + 1
    ]
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
    for member in (member for batch in story.batches for group in batch.groups for member in group.members):
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
    whole = {event.id for event in story.events if isinstance(event, TrajectoryScored)}
    turns = sorted(
        (time - event.seconds, time, event.id, event.turn)
        for time, event in story.timed()
        if isinstance(event, TurnFinished) and event.id in whole
    )
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
