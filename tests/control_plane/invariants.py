"""The design's invariants (architecture, section 8), as far as virtual time can show them.

``breaches`` and ``unaccounted`` look at a live control plane, ``violations`` at everything that has happened; all list
in words what is broken, each by a line that begins with the kind of the violation.
"""

from __future__ import annotations

from collections import Counter

from scenarios import NEVER, Scenario
from story import Story
from timing_invariants import timing_violations

from rollart.control_plane.groups import MemberState
from rollart.control_plane.outbox import FULL
from rollart.control_plane.rollout_scheduler import StarvedError
from rollart.control_plane.wiring import Wiring
from rollart.events import (
    Alarm,
    BatchFormed,
    CheckpointSaved,
    DomainSuspended,
    RunEnded,
    TrainStepped,
    TrajectoryEnded,
    TrajectoryScored,
    TrajectoryStarted,
)
from rollart.runtime.runtime import WorkerLost
from rollart.types import FailureKind, Outcome, Purpose, TrajectoryId


def breaches(wiring: Wiring, scenario: Scenario, alpha: int) -> list[str]:
    """Invariant 7: every queue, cache and buffer is within its bound; at any moment. ``alpha`` is the scenario's."""
    scheduler, proxy, loop = wiring.scheduler, wiring.proxy, wiring.loop
    environments = scenario.max_environments
    alive = 2 * environments  # evaluation has as many permits of its own
    losses = sum(supervisor._budget._losses for supervisor in wiring.supervisors)
    sizes = {
        "environments": (scheduler.environments, environments),
        "live groups": (scheduler.live_groups, (alpha + 1) * scenario.groups_per_batch + scenario.redundant_groups),
        "requests of trajectories": (sum(id in scheduler._host_of for id in (*proxy._gate, *proxy._in_flight)), alive),
        "aborted requests of lost hosts": (
            sum(id not in scheduler._host_of for id in proxy._in_flight),
            (losses + 1) * alive,  # engines may lose their answers too, then the deadline ends them
        ),
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
    return [
        *story.breaches,
        *_liveness(story),
        *_staleness(story),
        *_nothing_lost_by_waiting(story),
        *_one_batch_at_a_time(story),
        *_outcomes(story),
        *_trained_once(story),
        *_tokens(story),
        *_saved(story),
        *_versions(story),
        *_mix(story),
        *_lost_hosts(story),
        *timing_violations(story),
    ]


def _liveness(story: Story) -> list[str]:
    """A run reaches its last batch, unless its user stops it, its last domain starves or a worker dies for good."""
    error, scenario = story.error, story.scenario
    if error is None:
        missing = 0 if story.stopped else scenario.iterations - len(story.batches)
        return [f"liveness: {missing} batches of {scenario.iterations} are missing"] if missing else []
    if isinstance(error, StarvedError) and scenario.starvation_limit < NEVER:
        return []
    if (
        isinstance(error, WorkerLost)
        and scenario.death is not None
        and str(error).startswith(f"worker {scenario.death[1]} ")
    ):
        return []
    return [f"liveness: {type(error).__name__}: {error}"]


def _staleness(story: Story) -> list[str]:
    """Invariant 1, of what is trained: policy ``train`` has no such bound."""
    alpha, _, stale, *_ = story.scenario.switches
    if stale == "train":
        return []
    return [
        f"staleness: {member.id} started at {member.start_version} in batch {batch.index}"
        for batch, group, position, member in story.members()
        if position not in group.withheld
        and (member.start_version is None or not 0 <= batch.index - member.start_version <= alpha)
    ]


def _nothing_lost_by_waiting(story: Story) -> list[str]:
    """Policy ``wait``: with no redundancy and no failures nothing is started in vain."""
    scenario = story.scenario
    ended = [event for event in story.events if isinstance(event, TrajectoryEnded)]
    failures = any(event.failure is not None for event in ended)
    suspended = any(isinstance(event, DomainSuspended) for event in story.events)
    redundant = scenario.redundant_members + scenario.redundant_groups
    if scenario.switches.stale != "wait" or failures or suspended or redundant:
        return []
    stale = (Outcome.ABORTED_STALE, Outcome.EVICTED_STALE)
    return [f"wait: {event.id} ended as {event.outcome.value}" for event in ended if event.outcome in stale]


def _one_batch_at_a_time(story: Story) -> list[str]:
    """``at_batch`` with alpha = 1: one batch is live, so the weights of the step's start generate it as a whole.

    Redundant groups outlive their batch, and evaluation takes its updates when it needs them.
    """
    scenario, switches = story.scenario, story.scenario.switches
    if switches.update != "at_batch" or switches.alpha != 1 or scenario.redundant_groups or scenario.evaluate_every:
        return []
    versions: dict[int, set[int]] = {}
    for batch, *_, member in story.members():
        versions.setdefault(batch.index, set()).update(run.version for turn in member.turns() for run in turn.versions)
    return [f"batch: {index} has the versions {sorted(seen)}" for index, seen in versions.items() if len(seen) > 1]


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
    in_batches = Counter(member.id for *_, member in story.members())
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


def _tokens(story: Story) -> list[str]:
    """What is withheld enters no loss: the trainer's tokens are those of the other members."""
    expected: Counter[int] = Counter()
    for batch, group, position, member in story.members():
        expected[batch.index] += 0 if position in group.withheld else member.generated_tokens
    return [
        f"tokens: {event.tokens} were trained in batch {event.index}, it has {expected[event.index]}"
        for event in story.events
        if isinstance(event, TrainStepped) and event.tokens != expected[event.index]
    ]


def _saved(story: Story) -> list[str]:
    """Whatever ends a run, what was trained is saved, if the trainer still lives."""
    if story.scenario.death is not None and story.scenario.death[1].startswith("train"):
        return []
    trained = max((event.version for event in story.events if isinstance(event, TrainStepped)), default=0)
    saved = max((event.version for event in story.events if isinstance(event, CheckpointSaved)), default=0)
    return [f"saved: version {trained} was trained, {saved} is in the last checkpoint"] if saved < trained else []


def _versions(story: Story) -> list[str]:
    """Invariant 4, the part a trajectory shows: versions never fall."""
    found = []
    for batch, _, _, member in story.members():
        versions = [run.version for turn in member.turns() for run in turn.versions]
        if versions != sorted(versions) or versions[-1] > batch.index:
            found.append(f"versions: {member.id} has {versions} in batch {batch.index}")
    return found


def _mix(story: Story) -> list[str]:
    """Invariant 5, over the active domains: a suspension counts the mix anew."""
    weights = {f"d{number}": weight for number, weight in enumerate(story.scenario.weights)}
    taken: dict[int, dict[str, int]] = {}
    found = []
    for event in story.events:
        if isinstance(event, DomainSuspended):
            weights.pop(event.domain, None)
            taken.clear()
        if isinstance(event, BatchFormed):
            taken[event.index] = event.groups  # one that was not trained before a resume is formed anew
            total: Counter[str] = Counter()
            for groups in taken.values():
                total.update(groups)
            for domain, weight in weights.items():
                share = weight / sum(weights.values())
                if abs(total[domain] - share * total.total()) > story.scenario.mix_tolerance + 1e-6:
                    found.append(f"mix: {dict(total)} after batch {event.index}")
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
