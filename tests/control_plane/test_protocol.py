"""The training protocol's state machine: every legal path, and illegal transitions refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

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
    lambda p: p.demand(p.trained),
    *[lambda p, step=step: p.rollout_step_ended(step) for step in RolloutState],
]


@given(st.lists(st.integers(0, len(ACTIONS) - 1), max_size=60), st.sampled_from(["eager", "at_batch"]))
def test_any_order_of_calls_is_refused_or_keeps_the_versions_ordered(calls: list[int], update_mode: str) -> None:
    protocol = TrainingProtocol(4, update_mode)  # type: ignore[arg-type]
    for call in calls:
        before = (protocol.engines, protocol.announced, protocol.trained, protocol.training, protocol.rollout)
        try:
            ACTIONS[call](protocol)
        except ProtocolError:
            after = (protocol.engines, protocol.announced, protocol.trained, protocol.training, protocol.rollout)
            assert after == before, "a refused call changes nothing"
        assert protocol.engines <= protocol.announced <= protocol.trained <= 4
        if protocol.training is TrainingState.TRAIN_STEP and update_mode == "at_batch":
            assert protocol.engines == protocol.trained
