"""Bounded staleness: the rules of the bound alpha, stated once.

Staleness of a trajectory in batch k is k minus its start version, counted at the gradient. Terms:
``v`` is the oldest version among the engines, ``b`` the next batch that is not yet formed.

Called by the RolloutScheduler (admission), the SampleBuffer (batch forming) and the GroupBook
(per-turn and per-update resolution of stale groups).
"""

from __future__ import annotations


def oldest_admissible_start(next_batch: int, alpha: int) -> int:
    """The oldest start version that batch ``next_batch`` may still hold."""
    return next_batch - alpha


def is_stale(start_version: int | None, next_batch: int, alpha: int) -> bool:
    """Whether a trajectory can no longer be trained. One without a first token is never stale."""
    return start_version is not None and start_version < oldest_admissible_start(next_batch, alpha)


def admission_limit(version: int, next_batch: int, alpha: int, groups_per_batch: int, iterations: int) -> int:
    """How many groups may be live (started or buffered, not yet in a batch).

    A group started now starts at ``version`` or later, so it fits batches up to ``version + alpha``;
    there are ``version + alpha - next_batch + 1`` such batches left, and none after the last iteration.
    """
    batches = min(version + alpha, iterations - 1) - next_batch + 1
    return max(0, batches) * groups_per_batch
