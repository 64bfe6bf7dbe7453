"""The SampleBuffer: scored groups waiting to be trained, and the batches made of them.

It owns a finished group from ``put`` until a durable checkpoint covers the batch that trained it.

States of a group here: ``ready`` -> ``leased`` (in the one batch that is being trained) -> ``committed``
(trained; kept for re-application after a trainer restart when checkpoints are on) -> released.

Invariants: one lease at a time; ``form(k)`` comes after ``commit(k - 1)``; no trajectory that batch k trains started
before version k - alpha, unless the policy is ``train``; ``trained`` is counted once for each trajectory, at
``commit``; the number of ready groups never exceeds the capacity (alpha + 1) * B + redundant groups.

Pure: no I/O, no clock. The RolloutScheduler puts groups and evicts; the training loop forms, commits
and releases.
"""

from __future__ import annotations

import heapq
from collections import Counter, deque
from collections.abc import Iterator, Mapping

import msgspec

from rollart.config.modes import Stale
from rollart.control_plane.staleness import deciding_start, is_stale, oldest_admissible_start
from rollart.types import Group, TrainBatch


class BufferError(AssertionError):
    """A call out of order or beyond the bound: a fault in the control plane."""


class SampleBuffer:
    """See the module docstring.

    Args:
        alpha: Staleness bound.
        capacity: Most ready groups at any time.
        retain: Keep committed batches until ``release_through`` (a checkpoint covers them).
        first_batch: Index of the first batch (a resumed run starts later than 0).
        stale: What becomes of trajectories that would exceed the bound.
    """

    def __init__(self, alpha: int, capacity: int, retain: bool, first_batch: int = 0, stale: Stale = "abort") -> None:
        self._alpha = alpha
        self._stale: Stale = stale
        self._capacity = capacity
        self._retain = retain
        self._ready: dict[str, dict[int, Group]] = {}
        self._lease: TrainBatch | None = None
        self._committed: deque[TrainBatch] = deque()
        self._next = first_batch
        self._expiry: list[tuple[int, int, str]] = []
        """Heap of (start version that decides, index, domain) of the ready groups; entries of groups that left stay."""

    @property
    def next_batch(self) -> int:
        """Index of the next batch that is not yet formed."""
        return self._next

    @property
    def lease(self) -> TrainBatch | None:
        return self._lease

    @property
    def committed(self) -> tuple[TrainBatch, ...]:
        """Committed batches that no durable checkpoint covers, in order."""
        return tuple(self._committed)

    def __len__(self) -> int:
        return sum(len(groups) for groups in self._ready.values())

    def __iter__(self) -> Iterator[Group]:
        """The ready groups."""
        return (group for groups in self._ready.values() for group in groups.values())

    def ready(self) -> Counter[str]:
        """Ready groups by domain."""
        return Counter({domain: len(groups) for domain, groups in self._ready.items() if groups})

    def put(self, group: Group) -> None:
        """Take over a scored group.

        Raises:
            BufferError: the buffer is full; admission must have prevented it.
        """
        if len(self) >= self._capacity:
            raise BufferError(f"group {group.index} exceeds the buffer's capacity of {self._capacity} groups")
        self._ready.setdefault(group.domain, {})[group.index] = group
        start = deciding_start((member.start_version for member in group.members), self._stale)
        if start is not None:
            heapq.heappush(self._expiry, (start, group.index, group.domain))

    def evict_stale(self) -> list[Group]:
        """Remove the groups that the next batch may not hold any more."""
        evicted = []
        oldest = oldest_admissible_start(self._next, self._alpha)
        while self._expiry and self._expiry[0][0] < oldest:
            _, index, domain = heapq.heappop(self._expiry)
            group = self._ready.get(domain, {}).pop(index, None)
            if group is not None:
                evicted.append(group)
        return evicted

    def evict_domain(self, domain: str) -> list[Group]:
        """Remove a suspended domain's groups."""
        return list(self._ready.pop(domain, {}).values())

    def evict_newest(self, domain: str) -> Group:
        """Remove the newest ready group of a domain, which must have one."""
        groups = self._ready[domain]
        return groups.pop(max(groups))

    def evict_all(self) -> list[Group]:
        """The run ends: what is left was not trained."""
        groups, self._ready = list(self), {}
        return groups

    def form(self, groups: Mapping[str, int]) -> TrainBatch:
        """Lease the next batch: the given number of each domain's oldest ready groups.

        Raises:
            BufferError: a batch is leased already, too few groups are ready, or one is stale.
        """
        if self._lease is not None:
            raise BufferError(f"batch {self._next} asked for while batch {self._lease.index} is not committed")
        chosen: list[Group] = []
        for domain, count in groups.items():
            ready = self._ready.get(domain, {})
            if len(ready) < count:
                raise BufferError(f"batch {self._next} wants {count} groups of '{domain}', {len(ready)} are ready")
            chosen += [ready.pop(index) for index in sorted(ready)[:count]]
        chosen.sort(key=lambda group: group.index)
        if self._stale != "train":
            chosen = [self._withhold_stale(group) for group in chosen]
        self._lease = TrainBatch(self._next, tuple(chosen))
        self._next += 1
        return self._lease

    def commit(self, index: int) -> TrainBatch:
        """The leased batch has been trained.

        Raises:
            BufferError: it is not the leased one (a batch is committed exactly once).
        """
        batch = self._lease
        if batch is None or batch.index != index:
            leased = "none" if batch is None else str(batch.index)
            raise BufferError(f"commit of batch {index}, but the leased batch is {leased}")
        self._lease = None
        if self._retain:
            self._committed.append(batch)
        return batch

    def release_through(self, index: int) -> None:
        """A durable checkpoint covers every batch up to ``index``."""
        while self._committed and self._committed[0].index <= index:
            self._committed.popleft()

    def _withhold_stale(self, group: Group) -> Group:
        """The group with the members withheld that batch ``next_batch`` may not train.

        Raises:
            BufferError: there are some, and the policy is not to withhold them.
        """
        stale = [i for i, each in enumerate(group.members) if is_stale(each.start_version, self._next, self._alpha)]
        if not stale:
            return group
        if self._stale != "withhold":
            raise BufferError(f"batch {self._next} would hold stale group {group.index} (alpha {self._alpha})")
        return msgspec.structs.replace(group, withheld=tuple(sorted({*group.withheld, *stale})))
