"""The trainer through its interface: versions, determinism, failures, publishing, learning."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import numpy as np
import pytest

from rollart.config.config import Config
from rollart.data_plane.training.torch_trainer import TorchTrainer
from rollart.types import Group, Score, TokenSpan, TrainBatch

MakeBatch = Callable[..., TrainBatch]
MakeConfig = Callable[..., Config]
MakeTrainer = Callable[..., TorchTrainer]


def test_a_step_turns_version_k_into_k_plus_1_and_refuses_any_other_batch(
    make_trainer: MakeTrainer, make_config: MakeConfig, make_batch: MakeBatch
) -> None:
    trainer = make_trainer(make_config())
    before = trainer.info()
    with pytest.raises(ValueError, match="batch 1 comes too early: the trainer holds version 0"):
        trainer.train_step(make_batch(0, index=1))
    report = trainer.train_step(make_batch(0))
    assert (report.index, report.version, trainer.info().version) == (0, 1, 1)
    assert trainer.info().checksum != before.checksum
    with pytest.raises(ValueError, match="batch 0 was trained already"):
        trainer.train_step(make_batch(0))


def test_the_weights_do_not_depend_on_the_order_of_groups_and_members(
    make_trainer: MakeTrainer, make_config: MakeConfig, make_batch: MakeBatch
) -> None:
    batch = make_batch(3, groups=4)
    shuffled = TrainBatch(
        0,
        tuple(
            msgspec.structs.replace(group, members=tuple(reversed(group.members))) for group in reversed(batch.groups)
        ),
    )
    checksums = set()
    for variant in (batch, batch, shuffled):
        trainer = make_trainer(make_config(micro_batch_tokens=64))
        trainer.train_step(variant)
        checksums.add(trainer.info().checksum)
    assert len(checksums) == 1


def with_rewards(batch: TrainBatch, value: float) -> TrainBatch:
    groups = tuple(
        msgspec.structs.replace(
            group, members=tuple(msgspec.structs.replace(member, score=Score(value)) for member in group.members)
        )
        for group in batch.groups
    )
    return TrainBatch(batch.index, groups)


def test_equal_rewards_leave_the_weights_as_they_are(
    make_trainer: MakeTrainer, make_config: MakeConfig, make_batch: MakeBatch
) -> None:
    trainer = make_trainer(make_config())
    before = trainer.info().checksum
    report = trainer.train_step(with_rewards(make_batch(0), 0.1))
    assert trainer.info().checksum == before
    assert report.metrics["zero_advantage_share"] == 1.0
    assert report.metrics["grad_norm"] == 0.0
    assert any(alarm.startswith("zero advantage") for alarm in report.alarms)


def with_logprob(batch: TrainBatch, value: float) -> TrainBatch:
    """Every behaviour log-probability is ``value``."""

    def changed(group: Group) -> Group:
        members = []
        for member in group.members:
            turns = []
            for turn in member.turns():
                assert isinstance(turn.action, TokenSpan)
                action = TokenSpan.of(turn.action.ids, np.full(len(turn.action), value, np.float32))
                turns.append(msgspec.structs.replace(turn, action=action))
            segment = msgspec.structs.replace(member.segments[0], turns=tuple(turns))
            members.append(msgspec.structs.replace(member, segments=(segment,)))
        return msgspec.structs.replace(group, members=tuple(members))

    return TrainBatch(batch.index, tuple(changed(group) for group in batch.groups))


@pytest.mark.parametrize("settings", [{}, {"epochs": 2, "minibatches": 3}])
def test_a_gradient_that_is_not_finite_changes_nothing(
    make_trainer: MakeTrainer, make_config: MakeConfig, make_batch: MakeBatch, settings: dict[str, int]
) -> None:
    config = make_config(**settings, advantage_norm="none")
    healthy, trainer = make_trainer(config), make_trainer(config)
    for each in (healthy, trainer):
        each.train_step(make_batch(1))
    before = trainer.info()
    huge = make_batch(2, index=1, groups=3)
    last = huge.groups[-1]  # the last minibatch fails, after others were applied
    members = (msgspec.structs.replace(last.members[0], score=Score(2e38)), *last.members[1:])
    broken = TrainBatch(1, (*huge.groups[:-1], msgspec.structs.replace(last, members=members)))
    with pytest.raises(FloatingPointError, match="in iteration 1: the weights are unchanged"):
        trainer.train_step(broken)
    assert trainer.info() == before
    for each in (healthy, trainer):
        each.train_step(make_batch(4, index=1))
    assert trainer.info() == healthy.info()
