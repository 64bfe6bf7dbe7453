"""Bounded staleness: the rules of the bound alpha, stated once.

Staleness of a trajectory in batch k is k minus its start version, counted at the gradient. Terms:
``v`` is the oldest version among the engines, ``b`` the next batch that is not yet formed.

What becomes of a trajectory that would exceed the bound is the policy ``run.stale``:

* ``abort``: its group is resolved whole as soon as one member is too old for batch b;
* ``wait``: the same, but batch b is not formed while that would cost a running group that b could still hold;
* ``withhold``: members that are too old finish, count in their group's baseline and are not trained; the group is
  resolved once no member is young enough;
* ``train``: nothing is too old; the bound only limits how many groups are started.

Called by the RolloutScheduler (admission), the SampleBuffer (batch forming) and the GroupBook
(per-turn and per-update resolution of stale groups).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from rollart.config.modes import Stale


def oldest_admissible_start(next_batch: int, alpha: int) -> int:
    """The oldest start version that batch ``next_batch`` may still hold."""
    return next_batch - alpha


def is_stale(start_version: int | None, next_batch: int, alpha: int) -> bool:
    """Whether a trajectory can no longer be trained. One without a first token is never stale."""
    return start_version is not None and start_version < oldest_admissible_start(next_batch, alpha)


def deciding_start(start_versions: Iterable[int | None], policy: Stale) -> int | None:
    """The start version by which a group becomes stale as a whole; ``None`` if it cannot, or not yet.

    Args:
        start_versions: Of its members; ``None`` for one without a first token.
        policy: ``run.stale``.
    """
    starts = list(start_versions)
    known = [start for start in starts if start is not None]
    if policy == "train" or not known or (policy == "withhold" and len(known) < len(starts)):
        return None
    return max(known) if policy == "withhold" else min(known)


def is_group_stale(start_versions: Iterable[int | None], oldest: int, policy: Stale) -> bool:
    """Whether a group is to be resolved as stale when the next batch holds starts at ``oldest`` or later."""
    start = deciding_start(start_versions, policy)
    return start is not None and start < oldest


def admission_limit(version: int, next_batch: int, alpha: int, groups_per_batch: int, iterations: int) -> int:
    """How many groups may be live (started or buffered, not yet in a batch).

    A group started now starts at ``version`` or later, so it fits batches up to ``version + alpha``;
    there are ``version + alpha - next_batch + 1`` such batches left, and none after the last iteration.
    """
    batches = min(version + alpha, iterations - 1) - next_batch + 1
    return max(0, batches) * groups_per_batch


def waiting_saves_a_group(
    slots: Sequence[str],
    dealt: Sequence[str],
    groups_per_batch: int,
    ready: Mapping[str, Sequence[int]],
    running: Mapping[str, Sequence[int]],
) -> bool:
    """Policy ``wait``: whether forming the next batch now makes a group late that could be in it if it were ready.

    A group's deadline is the last batch that may hold it, counted from the next batch (0). Batches take a domain's
    groups in the order of their deadlines, which makes the fewest of them late.

    Args:
        slots: The domains of the coming slots if the batch is formed now, those of the next batch first.
        dealt: The same as they are if the batch waits for what it needs instead of borrowing.
        groups_per_batch: B.
        ready, running: Deadlines of the groups by domain.
    """
    for domain, waiting in running.items():
        finished = sorted(ready.get(domain, ()))
        taken = slots[:groups_per_batch].count(domain)
        now = sorted([*finished[taken:], *waiting])
        later = dealt[:groups_per_batch].count(domain)
        best = sorted([*finished, *waiting])[later:]
        if _late(now, slots, groups_per_batch, domain) > _late(best, dealt, groups_per_batch, domain):
            return True
    return False


def _late(deadlines: Sequence[int], slots: Sequence[str], groups_per_batch: int, domain: str) -> int:
    """How many of a domain's groups, first deadline first, find no slot behind the next batch in time.

    One whose deadline is over leaves its slot to the next.
    """
    batches = [place // groups_per_batch for place, owner in enumerate(slots) if owner == domain]
    behind = [batch for batch in batches if batch > 0]
    in_time = 0
    for deadline in deadlines:
        if in_time < len(behind) and behind[in_time] <= deadline:
            in_time += 1
    return len(deadlines) - in_time
