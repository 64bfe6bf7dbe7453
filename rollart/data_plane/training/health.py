"""What an iteration looked like, in numbers, and what a user should be alarmed by. Pure.

Who calls it: the trainer, once an iteration.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from rollart.config.training import TrainingConfig
from rollart.data_plane.training.advantages import rewards_of
from rollart.data_plane.training.batching import Row
from rollart.types import TrainBatch


def batch_metrics(batch: TrainBatch, rows: Sequence[Row]) -> dict[str, float]:
    """Mean reward over all members (``reward``, ``reward/<domain>``) and ``zero_advantage_share`` of the rows."""
    rewards: dict[str, list[np.ndarray]] = {}
    for group in batch.groups:
        rewards.setdefault(group.domain, []).append(rewards_of(group))
    means = {f"reward/{domain}": float(np.concatenate(values).mean()) for domain, values in sorted(rewards.items())}
    everything = [value for values in rewards.values() for value in values]
    metrics = {"reward": float(np.concatenate(everything).mean()) if everything else 0.0, **means}
    if rows:
        metrics["zero_advantage_share"] = sum(row.advantage == 0.0 for row in rows) / len(rows)
    return metrics


def alarms(metrics: Mapping[str, float], config: TrainingConfig) -> tuple[str, ...]:
    """A sentence for each number that is out of its healthy range; each says what it may mean."""
    found: list[str] = []
    entropy = metrics.get("entropy")
    if entropy is not None and entropy < config.entropy_alarm:
        found.append(
            f"entropy collapse: the mean token entropy is {entropy:.4f} nats, below training.entropy_alarm "
            f"{config.entropy_alarm}: the policy hardly explores (lower learning_rate, or set entropy_bonus)"
        )
    clipped = metrics.get("clip_share", 0.0)
    if clipped > config.clip_share_alarm:
        found.append(
            f"clipped share: {clipped:.0%} of the tokens were outside the clip range, above training.clip_share_alarm "
            f"{config.clip_share_alarm:.0%}: the policy moves too far from its data (lower learning_rate or run.alpha)"
        )
    zero = metrics.get("zero_advantage_share", 0.0)
    if zero > config.zero_advantage_alarm:
        found.append(
            f"zero advantage: {zero:.0%} of the trajectories had the mean reward of their group, above "
            f"training.zero_advantage_alarm {config.zero_advantage_alarm:.0%}: the tasks are too easy or too hard"
        )
    gap = metrics.get("logprob_gap_on_policy", 0.0)
    if gap > config.logprob_gap_alarm:
        found.append(
            f"log-probability gap: engine and trainer differ by {gap:.4f} on tokens of the same weights, above "
            f"training.logprob_gap_alarm {config.logprob_gap_alarm}: they do not compute the same policy "
            "(weights, dtype, top_p/top_k)"
        )
    return tuple(found)
