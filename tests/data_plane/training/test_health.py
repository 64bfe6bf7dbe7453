"""Numbers of an iteration and the alarms they raise."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rollart.config.config import Config
from rollart.config.training import TrainingConfig
from rollart.data_plane.training.batching import rows_of
from rollart.data_plane.training.health import alarms, batch_metrics
from rollart.types import TrainBatch

HEALTHY = {
    "entropy": 0.5,
    "clip_share": 0.1,
    "zero_advantage_share": 0.4,
    "logprob_gap": 0.3,
    "logprob_gap_on_policy": 1e-5,
}


def test_a_healthy_iteration_raises_no_alarm() -> None:
    assert alarms(HEALTHY, TrainingConfig()) == ()
    assert alarms({"loss": 0.0}, TrainingConfig()) == (), "nothing was computed: nothing to say"


@pytest.mark.parametrize(
    ("metric", "value", "says"),
    [
        ("entropy", 0.001, "entropy collapse: the mean token entropy is 0.0010 nats, below training.entropy_alarm"),
        ("clip_share", 0.5, "clipped share: 50% of the tokens"),
        ("zero_advantage_share", 0.99, "zero advantage: 99% of the trajectories"),
        ("logprob_gap_on_policy", 0.2, "log-probability gap: engine and trainer differ by 0.2000"),
    ],
)
def test_each_number_out_of_range_raises_its_alarm(metric: str, value: float, says: str) -> None:
    (alarm,) = alarms(HEALTHY | {metric: value}, TrainingConfig())
    assert alarm.startswith(says)


def test_rewards_count_everybody_and_shares_count_rows(
    make_batch: Callable[..., TrainBatch], make_config: Callable[..., Config]
) -> None:
    config = make_config()
    batch = make_batch(4, groups=4)
    rows = rows_of(batch, config.domains, config.training)
    metrics = batch_metrics(batch, rows)
    rewards = {
        domain: [
            member.score.value
            for group in batch.groups
            if group.domain == domain
            for member in group.members
            if member.score is not None
        ]
        for domain in ("a", "b")
    }
    assert metrics["reward/a"] == pytest.approx(sum(rewards["a"]) / len(rewards["a"]))
    assert metrics["reward/b"] == pytest.approx(sum(rewards["b"]) / len(rewards["b"]))
    assert metrics["reward"] == pytest.approx(sum(sum(values) for values in rewards.values()) / 16)
    assert metrics["zero_advantage_share"] == sum(row.advantage == 0 for row in rows) / len(rows)
