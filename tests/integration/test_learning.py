"""End to end on Ray: one small model learns two domains at once, asynchronously with alpha = 1, from random weights.

Thresholds are about half of what seeds 0 to 3 reached, so that only a run that does not learn misses them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import whole_job
from whole_job import POOL, Record

from rollart.config.config import Config
from rollart.events import (
    BatchFormed,
    EngineUpdated,
    Evaluated,
    TrajectoryEnded,
    TrajectoryStarted,
    VersionPublished,
)
from rollart.runtime.ray import RayRuntime
from rollart.runtime.ray_cluster import RayCluster
from rollart.types import Outcome, Trajectory

ITERATIONS = 25
WINDOW = 4
"""Iterations whose mean is compared, at the start and at the end."""

SETTINGS = {
    "run": {"name": "learning", "seed": 2, "iterations": ITERATIONS, "alpha": 1},
    "model": {
        "tiny": {
            "hidden": 64,
            "layers": 2,
            "heads": 4,
            "kv_heads": 4,
            "head_dim": 16,
            "intermediate": 128,
            "max_length": 128,
            "initializer_range": 0.1,
        }
    },
    "domains": {
        "guess_number": {
            "env": "guess_number",
            "args": {"numbers": 6, "span": [3, 4]},
            "max_turns": 4,
            "max_context": 48,
            "max_new_tokens": 1,
        },
        "math_tool": {
            "env": "math_tool",
            "args": {"numbers": 4},
            "max_turns": 2,
            "max_context": 48,
            "max_new_tokens": 2,
        },
    },
    "rollout": {"groups_per_batch": 8, "group_size": 8},
    "training": {"learning_rate": 0.005},
    "evaluation": {"instances": 64},
    "pools": {POOL: {"devices": 8}},
}


@pytest.mark.ray
@pytest.mark.timeout(whole_job.SECONDS + 60)
def test_success_and_rewards_rise(tmp_path: Path, ray_cluster: RayCluster) -> None:
    runtime = RayRuntime(ray_cluster, keep_cluster=True)
    record = whole_job.play(Config.model_validate(SETTINGS), tmp_path, runtime)
    assert len(record.batches) == ITERATIONS

    assert rise(record, "guess_number", lambda member: float(bool(member.score.success))) > 0.25
    assert rise(record, "guess_number", lambda member: member.score.value) > 0.5
    assert rise(record, "math_tool", lambda member: member.score.value) > 0.07
    before, after = held_out_success(record, 0), held_out_success(record, ITERATIONS)
    assert after["guess_number"] > before["guess_number"] + 0.25

    assert_asynchronous_within_the_bound(record)
    assert_accounted(record)


def rise(record: Record, domain: str, value: Callable[[Trajectory], float]) -> float:
    """By how much a domain's mean over the trained trajectories rises from the first iterations to the last."""
    means = [
        np.mean([value(member) for group in batch.groups if group.domain == domain for member in group.members])
        for batch in record.batches
    ]
    return float(np.mean(means[-WINDOW:]) - np.mean(means[:WINDOW]))


def held_out_success(record: Record, version: int) -> dict[str, float]:
    passes: list[Evaluated] = record.of(Evaluated)
    return {each.domain: each.success or 0.0 for each in passes if each.policy == "model" and each.version == version}


def assert_asynchronous_within_the_bound(record: Record) -> None:
    staleness: Counter[int] = Counter()
    for formed in record.of(BatchFormed):
        staleness.update(formed.staleness)
    assert set(staleness) == {0, 1}


def assert_accounted(record: Record) -> None:
    """Every trajectory has one outcome, and every engine had the weights that the trainer published."""
    started = Counter(event.id for event in record.of(TrajectoryStarted))
    ended = Counter(event.id for event in record.of(TrajectoryEnded))
    assert started == ended
    assert set(started.values()) == {1}
    trained = [event.id for event in record.of(TrajectoryEnded) if event.outcome is Outcome.TRAINED]
    in_batches = [member.id for batch in record.batches for group in batch.groups for member in group.members]
    assert sorted(trained) == sorted(in_batches)
    published = {event.version: event.checksum for event in record.of(VersionPublished)}
    updates: list[EngineUpdated] = record.of(EngineUpdated)
    assert updates[-1].version == ITERATIONS
    assert all(published[update.version] == update.checksum for update in updates)
