"""The group book: the state of every group from its opening until it is ready or resolved otherwise.

A group is opened with ``group_size`` plus redundant members. The first ``group_size`` members whose
score is known form it; it is then ``ready`` and leaves the book. A group that falls below the staleness
bound, or that can no longer reach its size, is resolved whole.

States of a member (one attempt of one trajectory at a time)::

    pending -> running -> scored                      (kept until the group is resolved)
                 |  \\-> failed -> pending (attempt + 1) | lost
                 \\-> cancelling (its outcome is decided; the host has not confirmed yet) -> gone

A cancelled member keeps its environment until the host confirms, so it stays in the book's
``cancelling`` table and in flight in the ledger until then. Exactly one terminal message arrives from
the host for each start; if the trajectory finished before the cancellation reached it, that message is
the confirmation.

Pure: no I/O, no clock. Called by the RolloutScheduler.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from enum import StrEnum

import msgspec

from rollart.config.modes import Stale
from rollart.control_plane.staleness import is_group_stale
from rollart.types import (
    EpisodeFailure,
    EpisodeSpec,
    FailureKind,
    Group,
    Outcome,
    Trajectory,
    TrajectoryId,
    derive_seed,
)


class MemberState(StrEnum):
    PENDING = "pending"
    RUNNING = "running"
    SCORED = "scored"
    WAITING = "waiting"
    """Failed, and its retry has not become due."""
    LOST = "lost"


class Member:
    """One position of a group and its present attempt."""

    __slots__ = ("host_losses", "id", "start_version", "state", "trajectory")

    def __init__(self, id: TrajectoryId) -> None:
        self.id = id
        self.state = MemberState.PENDING
        self.start_version: int | None = None
        self.trajectory: Trajectory | None = None
        self.host_losses = 0
        """Attempts that ended because their host was lost; they use up no retry."""


class LiveGroup:
    """A group that is neither ready nor resolved."""

    __slots__ = ("domain", "index", "members", "seed", "task")

    def __init__(self, index: int, domain: str, task: int, seed: int, size: int) -> None:
        self.index = index
        self.domain = domain
        self.task = task
        self.seed = seed
        self.members = [Member(TrajectoryId(domain, task, index, member)) for member in range(size)]

    def count(self, state: MemberState) -> int:
        return sum(member.state is state for member in self.members)

    @property
    def start_version(self) -> int | None:
        versions = [member.start_version for member in self.members if member.start_version is not None]
        return min(versions) if versions else None


class Resolution(msgspec.Struct):
    """What became of a group: what to record now and whom to cancel.

    Attributes:
        group: The group that was resolved.
        how: ``ready``, ``stale`` or ``lost``.
        ready: The group to put into the SampleBuffer, if ready.
        ended: Scored members and the outcome they end with.
        cancel: Running members to cancel; their outcomes are kept until the host confirms.
    """

    group: LiveGroup
    how: str
    ready: Group | None = None
    ended: list[tuple[Trajectory, Outcome]] = []
    cancel: list[TrajectoryId] = []


class Retry(msgspec.Struct, frozen=True):
    """A fresh attempt for a failed member, due after a delay.

    Attributes:
        id: The new trajectory.
        attempt: Retries used up so far, this one included unless a lost host made it necessary.
    """

    id: TrajectoryId
    attempt: int


class GroupBook:
    """See the module docstring.

    Args:
        root_seed: Seed of the run.
        group_size: Members that form a group.
        redundant: Members started beyond it.
        retries: Fresh attempts for each member.
        masked_domains: Domains whose limit-cut trajectories only count in the baseline.
        stale: What becomes of trajectories that would exceed the bound.
    """

    def __init__(
        self,
        root_seed: int,
        group_size: int,
        redundant: int,
        retries: int,
        masked_domains: frozenset[str],
        stale: Stale = "abort",
    ) -> None:
        self._root_seed = root_seed
        self._group_size = group_size
        self._size = group_size + redundant
        self._retries = retries
        self._masked = masked_domains
        self._stale: Stale = stale
        self._groups: dict[int, LiveGroup] = {}
        self._pending: deque[Member] = deque()
        self._cancelling: dict[TrajectoryId, Outcome] = {}
        self.next_index = 0

    def __len__(self) -> int:
        return len(self._groups)

    def __iter__(self) -> Iterator[LiveGroup]:
        return iter(self._groups.values())

    @property
    def cancelling(self) -> int:
        """Cancelled trajectories whose host has not confirmed yet."""
        return len(self._cancelling)

    def open(self, domain: str, task: int) -> LiveGroup:
        """Open a group on a task; its members become pending."""
        seed = derive_seed(self._root_seed, "train", domain, task)
        group = LiveGroup(self.next_index, domain, task, seed, self._size)
        self.next_index += 1
        self._groups[group.index] = group
        self._pending.extend(group.members)
        return group

    def next_start(self) -> EpisodeSpec | None:
        """The next trajectory to start, oldest group first; it counts as running from now on."""
        while self._pending:
            member = self._pending.popleft()
            group = self._groups.get(member.id.group)
            if group is None or member.state is not MemberState.PENDING:
                continue
            member.state = MemberState.RUNNING
            return EpisodeSpec(member.id, group.seed)
        return None

    def is_running(self, trajectory: TrajectoryId) -> bool:
        return self._running(trajectory) is not None

    def first_token(self, trajectory: TrajectoryId, version: int) -> bool:
        """Note a start version; True if it was news."""
        member = self._running(trajectory)
        if member is None or member.start_version is not None:
            return False
        member.start_version = version
        return True

    def take_cancelled(self, trajectory: TrajectoryId) -> Outcome | None:
        """The decided outcome of a cancelled trajectory whose terminal message arrived, or ``None``."""
        return self._cancelling.pop(trajectory, None)

    def finished(self, trajectory: Trajectory) -> Resolution | None:
        """A running member has been scored. The group's resolution if this made it ready.

        Raises:
            KeyError: the trajectory is not a running member (nor cancelled, which the caller checks first).
        """
        group, member = self._expect_running(trajectory.id)
        member.state = MemberState.SCORED
        member.trajectory = trajectory
        member.start_version = trajectory.start_version
        if group.count(MemberState.SCORED) < self._group_size:
            return None
        return self._ready(group)

    def failed(self, failure: EpisodeFailure) -> Retry | Resolution | None:
        """A running member has failed: a retry, the group's resolution as lost, or nothing more to do."""
        group, member = self._expect_running(failure.id)
        member.host_losses += failure.kind is FailureKind.HOST_LOST
        used = member.id.attempt - member.host_losses
        if failure.kind.retryable and used < self._retries:
            member.state = MemberState.WAITING
            member.start_version = None
            return Retry(msgspec.structs.replace(member.id, attempt=member.id.attempt + 1), used + 1)
        member.state = MemberState.LOST
        if len(group.members) - group.count(MemberState.LOST) >= self._group_size:
            return None
        return self._resolve(group, "lost", Outcome.GROUP_LOST, Outcome.GROUP_LOST)

    def retry_due(self, retry: Retry) -> None:
        """A retry's delay is over: the member is pending again, unless its group is gone."""
        group = self._groups.get(retry.id.group)
        if group is None:
            return
        member = group.members[retry.id.member]
        if member.state is MemberState.WAITING:
            member.id = retry.id
            member.state = MemberState.PENDING
            self._pending.appendleft(member)  # its group is older than what waits for a first start

    def resolve_stale(self, oldest: int) -> list[Resolution]:
        """Resolve every group that is stale when the next batch holds starts at version ``oldest`` or later."""
        stale = [group for group in self if self._is_stale(group, oldest)]
        return [self._resolve(group, "stale", Outcome.EVICTED_STALE, Outcome.ABORTED_STALE) for group in stale]

    def resolve_if_stale(self, trajectory: TrajectoryId, oldest: int) -> Resolution | None:
        """The per-turn check: resolve the trajectory's group if it is stale."""
        group = self._groups.get(trajectory.group)
        if group is None or self._running(trajectory) is None or not self._is_stale(group, oldest):
            return None
        return self._resolve(group, "stale", Outcome.EVICTED_STALE, Outcome.ABORTED_STALE)

    def resolve_newest(self, domain: str) -> Resolution | None:
        """Abandon the newest open group of a domain, or ``None`` if it has none."""
        newest = max((group.index for group in self if group.domain == domain), default=None)
        if newest is None:
            return None
        return self._resolve(self._groups[newest], "abandoned", Outcome.ABANDONED, Outcome.ABANDONED)

    def resolve_domain(self, domain: str) -> list[Resolution]:
        """Resolve all groups of a suspended domain."""
        groups = [group for group in self if group.domain == domain]
        return [self._resolve(group, "abandoned", Outcome.ABANDONED, Outcome.ABANDONED) for group in groups]

    def resolve_all(self) -> list[Resolution]:
        """The run ends: everything left is abandoned."""
        return [
            self._resolve(group, "abandoned", Outcome.ABANDONED, Outcome.ABANDONED)
            for group in list(self._groups.values())
        ]

    def _is_stale(self, group: LiveGroup, oldest: int) -> bool:
        return is_group_stale((member.start_version for member in group.members), oldest, self._stale)

    def _running(self, trajectory: TrajectoryId) -> Member | None:
        group = self._groups.get(trajectory.group)
        if group is None:
            return None
        member = group.members[trajectory.member]
        return member if member.state is MemberState.RUNNING and member.id == trajectory else None

    def _expect_running(self, trajectory: TrajectoryId) -> tuple[LiveGroup, Member]:
        member = self._running(trajectory)
        if member is None:
            raise KeyError(f"{trajectory} is not running")
        return self._groups[trajectory.group], member

    def _ready(self, group: LiveGroup) -> Resolution:
        members = tuple(m.trajectory for m in group.members if m.trajectory is not None)
        start = min(_start_version(member) for member in members)
        withheld: tuple[int, ...] = ()
        if group.domain in self._masked:
            withheld = tuple(i for i, member in enumerate(members) if member.limit is not None)
        resolution = Resolution(group, "ready", Group(group.domain, group.task, group.index, members, start, withheld))
        self._cancel_running(group, Outcome.SURPLUS, resolution)
        del self._groups[group.index]
        return resolution

    def _resolve(self, group: LiveGroup, how: str, scored: Outcome, running: Outcome) -> Resolution:
        resolution = Resolution(group, how)
        resolution.ended = [(member.trajectory, scored) for member in group.members if member.trajectory is not None]
        self._cancel_running(group, running, resolution)
        del self._groups[group.index]
        return resolution

    def _cancel_running(self, group: LiveGroup, outcome: Outcome, resolution: Resolution) -> None:
        for member in group.members:
            if member.state is MemberState.RUNNING:
                self._cancelling[member.id] = outcome
                resolution.cancel.append(member.id)


def _start_version(trajectory: Trajectory) -> int:
    version = trajectory.start_version
    if version is None:
        raise ValueError(f"{trajectory.id} was scored without a generated token: the environment host must fail it")
    return version
