"""The RolloutScheduler: what to start next, and what becomes of what was started.

It opens groups as far as the admission bound allows, in the order of the slot schedule, starts their
members as environments become free, passes requests to the LLMProxy and answers to the hosts, and
resolves groups: ready, stale, lost or abandoned. All its decisions are taken by pure cores (staleness,
mix, groups, tasks, ledger, sample_buffer); this shell connects them to hosts and engines.

Invariants: live groups (in the book or the buffer) never exceed the admission bound plus the redundant
groups; environments alive never exceed ``max_environments``; every started trajectory ends in one outcome, also
when its host is lost.

With ``run.stale: wait`` a batch is formed later than it could be if that keeps a running group from becoming stale;
with lock-step interaction or stage-wise scoring trajectories wait for each other (:mod:`rollart.control_plane.stages`).

Who calls it: the TrainingLoop (``try_form``, ``commit``, ``version_changed``), the Evaluation (``play``), and
the HostSupervisors (``receive``, ``host_lost``, ``host_back``).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial

import msgspec

from rollart.config.modes import Pace, Stale
from rollart.control_plane.env_host import HostReport
from rollart.control_plane.env_manager import Cancelled
from rollart.control_plane.groups import GroupBook, Resolution, Retry
from rollart.control_plane.host_client import HostClient
from rollart.control_plane.ledger import Ledger, LedgerError
from rollart.control_plane.llm_proxy import LLMProxy, aborted
from rollart.control_plane.mix import SlotSchedule
from rollart.control_plane.sample_buffer import SampleBuffer
from rollart.control_plane.stages import Stages
from rollart.control_plane.staleness import admission_limit, oldest_admissible_start, waiting_saves_a_group
from rollart.control_plane.tasks import TaskQueue
from rollart.control_plane.waits import Signal
from rollart.events import (
    Alarm,
    DomainSuspended,
    EventSink,
    FirstToken,
    GroupResolved,
    TrajectoryRetried,
    TrajectoryScored,
)
from rollart.types import (
    EpisodeFailure,
    EpisodeSpec,
    FailureKind,
    GenerationRequest,
    GenerationResult,
    Group,
    Outcome,
    Purpose,
    TrainBatch,
    Trajectory,
    TrajectoryId,
)


class StarvedError(RuntimeError):
    """Every domain is suspended; the message carries the last failure."""


class RolloutSettings(msgspec.Struct, frozen=True):
    """What the scheduler takes from the configuration; see :class:`rollart.config.run.RolloutConfig`."""

    alpha: int
    iterations: int
    groups_per_batch: int
    redundant_groups: int
    max_environments: int
    retry_delay: float
    starvation_limit: int
    filter_zero_variance: bool
    stale: Stale = "abort"
    interaction: Pace = "trajectory"
    scoring: Pace = "trajectory"


class Cores(msgspec.Struct, frozen=True):
    """The pure decision cores."""

    book: GroupBook
    buffer: SampleBuffer
    slots: SlotSchedule
    tasks: dict[str, TaskQueue]
    ledger: Ledger


class RolloutScheduler:
    """See the module docstring."""

    def __init__(
        self,
        settings: RolloutSettings,
        cores: Cores,
        hosts: Sequence[HostClient],
        sink: EventSink,
        changed: Signal,
    ) -> None:
        self._settings = settings
        self._book = cores.book
        self._buffer = cores.buffer
        self._slots = cores.slots
        self._tasks = cores.tasks
        self._ledger = cores.ledger
        self._hosts = list(hosts)
        self._sink = sink
        self._changed = changed
        self._stages = Stages(settings.interaction, settings.scoring)
        self._host_of: dict[TrajectoryId, HostClient] = {}
        self._generated: Counter[TrajectoryId] = Counter()
        """Tokens answered so far, for those whose host cannot tell any more."""
        self._given_up: set[TrajectoryId] = set()
        """Recorded without their host, which may tell of them later."""
        self._players: dict[TrajectoryId, Callable[[Trajectory | EpisodeFailure], None]] = {}
        self._bad_groups: Counter[str] = Counter()
        self._last_failure: dict[str, str] = {}
        self._proxy: LLMProxy | None = None
        self._closed = True
        self.fatal: Exception | None = None

    @property
    def proxy(self) -> LLMProxy:
        if self._proxy is None:
            raise RuntimeError("the scheduler has no LLMProxy yet: call connect first")
        return self._proxy

    def connect(self, proxy: LLMProxy) -> None:
        """Give the scheduler its LLMProxy, which in turn reports first tokens to it."""
        self._proxy = proxy

    @property
    def live_groups(self) -> int:
        return len(self._book) + len(self._buffer)

    @property
    def environments(self) -> int:
        """Environments alive for training; evaluation has permits of its own, so that neither blocks the other."""
        return sum(host.running for host in self._hosts) - len(self._players)

    def open(self) -> None:
        """Begin to start trajectories."""
        self._closed = False
        self.pump()

    def version_changed(self) -> None:
        """The engines' version rose: resolve what became stale, admit what may start."""
        self._resolve_stale()
        self.pump()

    def first_token(self, trajectory: TrajectoryId, version: int) -> None:
        """The LLMProxy learned a start version."""
        if self._book.first_token(trajectory, version):
            self._sink.emit(FirstToken(trajectory, version))

    def try_form(self) -> TrainBatch | None:
        """``get_batch``: lease the next batch if its groups are ready.

        Stale groups are evicted first; afterwards everything that the batch after it could not hold is
        resolved, and new groups are admitted.
        """
        self._evict(self._buffer.evict_stale())
        limit = self._admission()
        waits = self._settings.stale == "wait"
        groups = self._slots.try_form(self._buffer.ready(), limit, self._waiting_saves_a_group if waits else None)
        if groups is None:
            self.pump()
            return None
        batch = self._buffer.form(groups)
        self._resolve_stale()
        self.pump()
        return batch

    def commit(self, index: int) -> TrainBatch:
        """The leased batch has been trained: record its members' outcomes, once."""
        batch = self._buffer.commit(index)
        for group in batch.groups:
            for position, member in enumerate(group.members):
                outcome = Outcome.WITHHELD if position in group.withheld else Outcome.TRAINED
                start = member.start_version
                self._end(member, outcome, None if start is None else index - start)
        return batch

    def pump(self) -> None:
        """Open the groups that admission allows and start members while environments are free."""
        if self._closed:
            return
        self._open_groups()
        while self._any_host and self.environments < self._settings.max_environments:
            spec = self._book.next_start()
            if spec is None:
                return
            host = self._start(spec)
            self._stages.started(spec.id)
            self._ledger.start(spec.id, spec.seed, host.name)

    def finish(self) -> None:
        """The last batch is trained (or the run was stopped): abandon what is left."""
        self._closed = True
        for resolution in self._book.resolve_all():
            self._apply(resolution)
        trained = self._buffer.next_batch >= self._settings.iterations
        for group in self._buffer.evict_all():
            if trained:
                self._resolved(group, "surplus", Outcome.SURPLUS)
            else:
                self._resolved(group, "abandoned", Outcome.ABANDONED)

    @property
    def settled(self) -> bool:
        """Whether every cancelled trajectory has been confirmed by its host."""
        return self._book.cancelling == 0

    def abandon_open(self) -> None:
        """Record what the hosts never confirmed."""
        for trajectory in self._ledger.open:
            self._ledger.end(trajectory, Outcome.ABANDONED, message="not confirmed by its host before the run ended")
            self._given_up.add(trajectory)

    def play(self, spec: EpisodeSpec, ended: Callable[[Trajectory | EpisodeFailure], None]) -> bool:
        """Start an evaluation trajectory if a permit is free and a host up; ``ended`` receives its end."""
        if len(self._players) >= self._settings.max_environments or not self._any_host:
            return False
        self._players[spec.id] = ended
        self._start(spec)
        return True

    def receive(self, host: HostClient, report: HostReport) -> None:
        """Everything one long poll brought."""
        for request in report.requests:
            self._requested(host, request)
        for played in report.played:
            self._stages.played(played, partial(host.permit, played))
        for trajectory in report.finished:
            self._freed(host, trajectory.id)
            self._finished(trajectory)
        for failure in report.failures:
            self._freed(host, failure.id)
            self._failed(failure)
        for cancelled in report.cancelled:
            self._freed(host, cancelled.id)
            self._confirmed(cancelled)
        if report.finished or report.failures or report.cancelled:
            self._changed.notify()
            self.pump()

    def host_lost(self, host: HostClient, cause: str) -> None:
        """The host's process is gone: everything that ran on it ends, and its requests are aborted.

        What was cancelled ends with its decided outcome, everything else as ``failed(host_lost)``.
        """
        for trajectory in [id for id, holder in self._host_of.items() if holder is host]:
            failure = EpisodeFailure(trajectory, FailureKind.HOST_LOST, cause, self._generated[trajectory])
            self.proxy.abort(trajectory)
            self._freed(host, trajectory)
            self._failed(failure)
        self._changed.notify()
        self.pump()

    def host_back(self) -> None:
        """A lost host has been started again."""
        self._changed.notify()
        self.pump()

    def describe(self) -> str:
        """The scheduler's state in one line, for the watchdog."""
        states = Counter(member.state.value for group in self._book for member in group.members)
        members = ", ".join(f"{count} {state}" for state, count in sorted(states.items())) or "none"
        return (
            f"RolloutScheduler: {len(self._book)} groups open (members: {members}), "
            f"{self._book.cancelling} cancelling; {len(self._buffer)} groups ready {dict(self._buffer.ready())}, "
            f"admission {self._admission()}, next batch {self._buffer.next_batch} needs "
            f"{dict(self._slots.horizon(self._settings.groups_per_batch))}; "
            f"environments {self.environments}/{self._settings.max_environments} "
            f"on {sum(host.up for host in self._hosts)} of {len(self._hosts)} hosts"
            + (f"; {stages}" if (stages := self._stages.describe()) else "")
        )

    @property
    def _any_host(self) -> bool:
        return any(host.up for host in self._hosts)

    def _admission(self) -> int:
        settings = self._settings
        limit = admission_limit(
            self.proxy.version,
            self._buffer.next_batch,
            settings.alpha,
            settings.groups_per_batch,
            settings.iterations,
        )
        return limit + settings.redundant_groups if limit else 0

    def _open_groups(self) -> None:
        limit = self._admission()
        if limit <= self.live_groups:
            return
        live = self._buffer.ready()
        live.update(Counter(group.domain for group in self._book))
        seen: Counter[str] = Counter()
        for domain in self._slots.upcoming(limit):
            seen[domain] += 1
            if seen[domain] > live[domain]:
                live[domain] += 1
                self._book.open(domain, self._tasks[domain].take())
                if self.live_groups >= limit:
                    return

    def _start(self, spec: EpisodeSpec) -> HostClient:
        host = min((host for host in self._hosts if host.up), key=lambda candidate: candidate.running)
        self._host_of[spec.id] = host
        host.start(spec)
        return host

    def _freed(self, host: HostClient, trajectory: TrajectoryId) -> None:
        host.running -= 1
        del self._host_of[trajectory]
        self._stages.ended(trajectory)
        self._generated.pop(trajectory, None)
        self.proxy.release(trajectory)

    def _requested(self, host: HostClient, request: GenerationRequest) -> None:
        trajectory = request.trajectory
        if trajectory.purpose is Purpose.TRAIN:
            if request.turn > 0:
                oldest = oldest_admissible_start(self._buffer.next_batch, self._settings.alpha)
                resolution = self._book.resolve_if_stale(trajectory, oldest)
                if resolution is not None:
                    self._apply(resolution)
            if not self._book.is_running(trajectory):
                host.deliver(aborted(request))
                return
            self._stages.requested(
                trajectory, partial(self._submit, host, request), partial(self._deliver, host, aborted(request))
            )
        else:
            self._submit(host, request)

    def _submit(self, host: HostClient, request: GenerationRequest) -> None:
        self.proxy.submit(request, partial(self._answered, host))

    def _answered(self, host: HostClient, result: GenerationResult) -> None:
        if self._host_of.get(result.trajectory) is host:
            self._generated[result.trajectory] += len(result.action)
        if result.trajectory.purpose is Purpose.TRAIN:
            self._stages.answered(result.trajectory, partial(self._deliver, host, result))
        else:
            self._deliver(host, result)

    def _deliver(self, host: HostClient, result: GenerationResult) -> None:
        """Pass an answer on, unless the host was lost while an engine worked for it."""
        if self._host_of.get(result.trajectory) is host:
            host.deliver(result)

    def _finished(self, trajectory: Trajectory) -> None:
        if (ended := self._players.pop(trajectory.id, None)) is not None:
            ended(trajectory)
            return
        if trajectory.id in self._given_up:
            return
        outcome = self._book.take_cancelled(trajectory.id)
        if outcome is not None:
            self._end(trajectory, outcome)
            return
        self._sink.emit(_scored(trajectory))
        start = trajectory.start_version
        if start is not None:
            self.first_token(trajectory.id, start)
        oldest = oldest_admissible_start(self._buffer.next_batch, self._settings.alpha)
        stale = self._book.resolve_if_stale(trajectory.id, oldest)
        if stale is not None:
            stale.cancel.remove(trajectory.id)
            self._book.take_cancelled(trajectory.id)
            self._end(trajectory, Outcome.EVICTED_STALE)
            self._apply(stale)
            return
        resolution = self._book.finished(trajectory)
        if resolution is not None:
            self._apply(resolution)

    def _failed(self, failure: EpisodeFailure) -> None:
        if (ended := self._players.pop(failure.id, None)) is not None:
            ended(failure)
            return
        if failure.id in self._given_up:
            return
        outcome = self._book.take_cancelled(failure.id)
        if outcome is not None:
            self._ledger.end(failure.id, outcome, generated_tokens=failure.generated_tokens)
            return
        self._last_failure[failure.id.domain] = f"{failure.kind.value}: {failure.message}"
        self._ledger.end(
            failure.id,
            Outcome.FAILED,
            failure=failure.kind,
            message=failure.message,
            generated_tokens=failure.generated_tokens,
        )
        consequence = self._book.failed(failure)
        if isinstance(consequence, Retry):
            delay = self._settings.retry_delay * 2 ** max(0, consequence.attempt - 1)
            self._sink.emit(TrajectoryRetried(failure.id, consequence.id, delay))
            asyncio.get_running_loop().call_later(delay, self._retry, consequence)
        elif consequence is not None:
            self._apply(consequence)

    def _retry(self, retry: Retry) -> None:
        """A timer's callback, whose errors nobody would see: they end the run through ``fatal``."""
        try:
            self._book.retry_due(retry)
            self.pump()
        except Exception as error:  # noqa: BLE001 - handed to the training side, which raises it
            self.fatal = error
            self._changed.notify()

    def _confirmed(self, cancelled: Cancelled) -> None:
        if cancelled.id in self._given_up:
            return
        outcome = self._book.take_cancelled(cancelled.id)
        if outcome is None:
            raise LedgerError(f"{cancelled.id} was confirmed as cancelled, but nobody cancelled it")
        self._ledger.end(cancelled.id, outcome, generated_tokens=cancelled.generated_tokens)

    def _waiting_saves_a_group(self, slots: Sequence[str], dealt: Sequence[str]) -> bool:
        """As :func:`waiting_saves_a_group`; a group that has not started starts at the engines' version or later."""
        last, version = self._settings.alpha - self._buffer.next_batch, self.proxy.version
        ready: dict[str, list[int]] = {}
        running: dict[str, list[int]] = {}
        for group in self._buffer:
            ready.setdefault(group.domain, []).append(group.start_version + last)
        for open_group in self._book:
            start = open_group.start_version
            running.setdefault(open_group.domain, []).append((version if start is None else start) + last)
        return waiting_saves_a_group(slots, dealt, self._settings.groups_per_batch, ready, running)

    def _resolve_stale(self) -> None:
        oldest = oldest_admissible_start(self._buffer.next_batch, self._settings.alpha)
        for resolution in self._book.resolve_stale(oldest):
            self._apply(resolution)
        self._evict(self._buffer.evict_stale())

    def _evict(self, groups: list[Group]) -> None:
        for group in groups:
            self._resolved(group, "stale", Outcome.EVICTED_STALE)
            self._tasks[group.domain].give_back(group.task)

    def _apply(self, resolution: Resolution) -> None:
        group = resolution.group
        for trajectory in resolution.cancel:
            self._stages.ended(trajectory)
            self.proxy.abort(trajectory)
            self._host_of[trajectory].cancel(trajectory)
        for member, outcome in resolution.ended:
            self._end(member, outcome)
        if resolution.ready is not None:
            self._ready(resolution.ready)
            return
        self._sink.emit(GroupResolved(group.domain, group.index, resolution.how, group.start_version))
        if resolution.how == "stale":
            self._tasks[group.domain].give_back(group.task)
        if resolution.how == "lost":
            self._bad_group(group.domain)
        self._changed.notify()

    def _ready(self, group: Group) -> None:
        rewards = {member.score.value for member in group.members if member.score is not None}
        if self._settings.filter_zero_variance and len(rewards) == 1:
            self._resolved(group, "filtered", Outcome.FILTERED)
            self._bad_group(group.domain)
        else:
            self._bad_groups[group.domain] = 0
            self._sink.emit(GroupResolved(group.domain, group.index, "ready", group.start_version))
            self._buffer.put(group)
        self._changed.notify()

    def _resolved(self, group: Group, how: str, outcome: Outcome) -> None:
        self._sink.emit(GroupResolved(group.domain, group.index, how, group.start_version))
        for member in group.members:
            self._end(member, outcome)

    def _end(self, member: Trajectory, outcome: Outcome, staleness: int | None = None) -> None:
        score = member.score
        self._ledger.end(
            member.id,
            outcome,
            generated_tokens=member.generated_tokens,
            reward=None if score is None else score.value,
            success=None if score is None else score.success,
            staleness=staleness,
        )

    def _bad_group(self, domain: str) -> None:
        """Count a failed or filtered group; suspend the domain after too many in a row."""
        self._bad_groups[domain] += 1
        if self._bad_groups[domain] < self._settings.starvation_limit or domain not in self._slots.active:
            return
        cause = self._last_failure.get(domain, "all rewards of each group were equal")
        reason = f"{self._bad_groups[domain]} groups in a row failed or were filtered; last: {cause}"
        self._sink.emit(DomainSuspended(domain, reason))
        self._sink.emit(Alarm(f"domain {domain}", f"suspended: {reason}"))
        if len(self._slots.active) == 1:
            self.fatal = StarvedError(f"no domain is left to train: domain '{domain}' was suspended: {reason}")
            self._changed.notify()
            return
        self._slots.suspend(domain)
        for resolution in self._book.resolve_domain(domain):
            self._apply(resolution)
        for group in self._buffer.evict_domain(domain):
            self._resolved(group, "abandoned", Outcome.ABANDONED)
        self._shed_excess()

    def _shed_excess(self) -> None:
        """After a suspension the slots are dealt anew: abandon groups that have none, or they would hold
        the places of those that the next batches need."""
        need = self._slots.horizon(self._admission())
        live = self._buffer.ready()
        live.update(Counter(group.domain for group in self._book))
        for domain in self._slots.active:
            for _ in range(live[domain] - need[domain]):
                resolution = self._book.resolve_newest(domain)
                if resolution is not None:
                    self._apply(resolution)
                else:
                    self._resolved(self._buffer.evict_newest(domain), "abandoned", Outcome.ABANDONED)


def _scored(trajectory: Trajectory) -> TrajectoryScored:
    score = trajectory.score
    return TrajectoryScored(
        id=trajectory.id,
        reward=0.0 if score is None else score.value,
        success=None if score is None else score.success,
        turns=sum(1 for _ in trajectory.turns()),
        generated_tokens=trajectory.generated_tokens,
        total_tokens=trajectory.total_tokens,
        start_version=trajectory.start_version,
        limit=None if trajectory.limit is None else trajectory.limit.value,
        seconds=trajectory.seconds,
    )
