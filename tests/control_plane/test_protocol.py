"""The training protocol's state machine: every legal path, and illegal transitions refused."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollart.config.modes import Transfer, Update
from rollart.control_plane.protocol import ProtocolError, RolloutState, TrainingProtocol, TrainingState

UPDATE_STEPS = (RolloutState.SUSPEND, RolloutState.UPDATE, RolloutState.RESUME, RolloutState.RECOMPUTE)


def iterate(protocol: TrainingProtocol) -> None:
    """One training iteration without an update."""
    protocol.batch_formed(protocol.index)
    protocol.train_begins()
    protocol.train_ended(protocol.trained + 1)


def update(protocol: TrainingProtocol) -> None:
    due = protocol.update_due()
    assert due is not None
    protocol.suspend_begins(due)
    for step in UPDATE_STEPS:
        protocol.rollout_step_ended(step)


def test_eager_updates_while_get_batch_waits_and_while_training() -> None:
    protocol = TrainingProtocol(3, "eager")
    iterate(protocol)
    assert protocol.update_due() is None, "trained, but not announced"
    protocol.announce(1)
    assert protocol.training is TrainingState.GET_BATCH
    assert protocol.update_due() == 1
    protocol.batch_formed(1)
    protocol.train_begins()
    update(protocol)
    assert (protocol.engines, protocol.announced, protocol.trained) == (1, 1, 1)
    protocol.train_ended(2)


def test_at_batch_updates_only_between_get_batch_and_train_step() -> None:
    protocol = TrainingProtocol(3, "at_batch")
    iterate(protocol)
    protocol.announce(1)
    assert protocol.update_due() is None, "get_batch(1) has not returned"
    protocol.batch_formed(1)
    assert not protocol.may_train
    update(protocol)
    assert protocol.may_train


def test_at_batch_waits_for_the_push_of_the_newest_version() -> None:
    protocol = TrainingProtocol(3, "at_batch")
    iterate(protocol)
    protocol.batch_formed(1)
    assert protocol.update_due() is None
    assert not protocol.may_train
    protocol.announce(1)
    assert protocol.update_due() == 1


def test_evaluation_gets_its_version_in_either_order() -> None:
    protocol = TrainingProtocol(2, "at_batch")
    iterate(protocol)
    protocol.announce(1)
    assert protocol.update_due() is None
    protocol.demand(1)
    update(protocol)
    assert protocol.engines == 1
    iterate(protocol)
    protocol.announce(2)
    protocol.demand(2)
    assert protocol.update_due() == 2, "training is done, the final evaluation needs W_2"


def test_the_last_iteration_ends_the_training_side() -> None:
    protocol = TrainingProtocol(1, "eager")
    iterate(protocol)
    assert protocol.training is TrainingState.DONE
    with pytest.raises(ProtocolError):
        protocol.batch_formed(1)


def test_a_failed_train_step_holds_the_batch_again() -> None:
    protocol = TrainingProtocol(2, "eager")
    protocol.batch_formed(0)
    protocol.train_begins()
    protocol.train_failed()
    assert protocol.may_train
    assert protocol.trained == 0


def blocking(iterations: int = 3, update: Update = "eager") -> TrainingProtocol:
    return TrainingProtocol(iterations, update, transfer="blocking")


def test_a_blocking_transfer_makes_an_update_due_at_trained_and_pushes_within_it() -> None:
    protocol = blocking()
    assert protocol.update_due() is None
    iterate(protocol)
    assert protocol.update_due() == 1, "trained is enough, nothing has been announced"
    protocol.suspend_begins(1)
    protocol.rollout_step_ended(RolloutState.SUSPEND)
    with pytest.raises(ProtocolError, match="update to version 1"):
        protocol.rollout_step_ended(RolloutState.UPDATE)
    protocol.announce(1)
    for step in UPDATE_STEPS[1:]:
        protocol.rollout_step_ended(step)
    assert (protocol.engines, protocol.rollout) == (1, RolloutState.ROLLOUT)
    assert protocol.update_due() is None


@pytest.mark.parametrize("update_mode", ["eager", "at_batch"])
def test_with_a_blocking_transfer_the_trainer_waits_for_its_push(update_mode: Update) -> None:
    protocol = blocking(update=update_mode)
    iterate(protocol)
    protocol.batch_formed(1)
    assert not protocol.may_train
    with pytest.raises(ProtocolError, match="train_step"):
        protocol.train_begins()
    assert protocol.update_due() == 1
    protocol.suspend_begins(1)
    protocol.rollout_step_ended(RolloutState.SUSPEND)
    assert not protocol.may_train
    protocol.announce(1)
    assert protocol.may_train == (update_mode == "eager"), "at_batch also waits for the swap"
    for step in UPDATE_STEPS[1:]:
        protocol.rollout_step_ended(step)
    protocol.train_begins()


def test_a_blocking_update_takes_what_was_trained_since_it_began() -> None:
    """The train step of version 2 had begun when the update to version 1 did, and ended before the push."""
    protocol = TrainingProtocol(4, "eager", version=0, transfer="blocking")
    iterate(protocol)
    update_to = protocol.update_due()
    assert update_to == 1
    protocol.suspend_begins(1)
    protocol.announce(1)
    protocol.batch_formed(1)
    protocol.train_begins()
    protocol.train_ended(2)
    protocol.rollout_step_ended(RolloutState.SUSPEND)
    protocol.announce(2)
    for step in UPDATE_STEPS[1:]:
        protocol.rollout_step_ended(step)
    assert (protocol.engines, protocol.announced) == (2, 2)


def test_an_asynchronous_update_keeps_its_target_when_a_newer_version_is_announced() -> None:
    protocol = TrainingProtocol(4, "eager")
    iterate(protocol)
    protocol.announce(1)
    protocol.suspend_begins(1)
    iterate(protocol)
    protocol.announce(2)
    for step in UPDATE_STEPS:
        protocol.rollout_step_ended(step)
    assert protocol.engines == 1, "what was prefetched is what is swapped in"
    assert protocol.update_due() == 2


def test_evaluation_gets_its_version_by_a_blocking_transfer_too() -> None:
    protocol = blocking(iterations=1, update="at_batch")
    iterate(protocol)
    assert protocol.update_due() is None
    protocol.demand(1)
    assert protocol.update_due() == 1


ACTIONS = [
    lambda p: p.batch_formed(p.index),
    lambda p: p.batch_formed(p.index + 1),
    lambda p: p.train_begins(),
    lambda p: p.train_ended(p.trained + 1),
    lambda p: p.train_ended(p.trained),
    lambda p: p.train_failed(),
    lambda p: p.announce(p.trained),
    lambda p: p.announce(p.trained + 1),
    lambda p: p.suspend_begins(p.announced),
    lambda p: p.suspend_begins(p.trained),
    lambda p: p.demand(p.trained),
    *[lambda p, step=step: p.rollout_step_ended(step) for step in RolloutState],
]


@given(
    st.lists(st.integers(0, len(ACTIONS) - 1), max_size=60),
    st.sampled_from(["eager", "at_batch"]),
    st.sampled_from(["asynchronous", "blocking"]),
)
def test_any_order_of_calls_is_refused_or_keeps_the_versions_ordered(
    calls: list[int], update_mode: Update, transfer: Transfer
) -> None:
    protocol = TrainingProtocol(4, update_mode, transfer=transfer)

    def state() -> tuple[object, ...]:
        versions = protocol.engines, protocol.announced, protocol.trained
        return *versions, protocol.training, protocol.rollout, protocol.update_due(), protocol.may_train

    for call in calls:
        before = state()
        training = protocol.training
        try:
            ACTIONS[call](protocol)
        except ProtocolError:
            assert state() == before, "a refused call changes nothing"
        assert protocol.engines <= protocol.announced <= protocol.trained <= 4
        if protocol.training is TrainingState.TRAIN_STEP and training is not TrainingState.TRAIN_STEP:
            assert transfer == "asynchronous" or protocol.announced == protocol.trained, "trains before the push"
            assert update_mode == "eager" or protocol.engines == protocol.trained


@given(
    st.randoms(use_true_random=False),
    st.sampled_from(["eager", "at_batch"]),
    st.sampled_from(["asynchronous", "blocking"]),
)
def test_whoever_moves_next_the_run_ends_with_every_version_taken(
    random: Random, order: Update, transfer: Transfer
) -> None:
    """The three loops of the shell as a model: whatever their order, somebody can always move."""
    protocol = TrainingProtocol(4, order, transfer=transfer)
    alpha = 1

    def trainer() -> bool:
        if protocol.training is TrainingState.GET_BATCH and protocol.index - protocol.engines <= alpha:
            protocol.batch_formed(protocol.index)
        elif protocol.may_train:
            protocol.train_begins()
        elif protocol.training is TrainingState.TRAIN_STEP:
            protocol.train_ended(protocol.trained + 1)
        else:
            return False
        return True

    def publisher() -> bool:
        pushes = transfer == "asynchronous" or protocol.rollout is RolloutState.UPDATE
        if not pushes or protocol.announced == protocol.trained:
            return False
        protocol.announce(protocol.trained)
        return True

    def rollout_side() -> bool:
        due = protocol.update_due()
        if due is not None:
            protocol.suspend_begins(due)
        elif protocol.rollout is RolloutState.ROLLOUT:
            return False
        elif protocol.rollout is RolloutState.UPDATE and protocol.announced == protocol.engines:
            return False  # the push is under way
        else:
            protocol.rollout_step_ended(protocol.rollout)
        return True

    while protocol.training is not TrainingState.DONE:
        sides = [trainer, publisher, rollout_side]
        random.shuffle(sides)
        assert any(side() for side in sides), f"nobody can move: {protocol.describe()}"
    protocol.demand(4)
    while publisher() or rollout_side():
        pass
    assert (protocol.engines, protocol.announced, protocol.trained) == (4, 4, 4)
