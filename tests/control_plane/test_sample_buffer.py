"""The SampleBuffer's lease, its bound, and what it refuses."""

from __future__ import annotations

import pytest
from builders import group, trajectory
from hypothesis import given
from hypothesis import strategies as st

from rollart.config.modes import Stale
from rollart.control_plane.sample_buffer import BufferError, SampleBuffer
from rollart.types import Group, TrajectoryId


def test_a_batch_takes_the_oldest_ready_groups_of_each_domain_in_canonical_order() -> None:
    buffer = SampleBuffer(alpha=1, capacity=8, retain=False)
    for index, domain in ((5, "a"), (1, "b"), (3, "a"), (4, "b")):
        buffer.put(group(index, domain))
    batch = buffer.form({"a": 1, "b": 1})
    assert [member.index for member in batch.groups] == [1, 3]
    assert buffer.ready() == {"a": 1, "b": 1}


def test_one_lease_at_a_time_and_commit_exactly_once() -> None:
    buffer = SampleBuffer(alpha=1, capacity=8, retain=False)
    for index in range(4):
        buffer.put(group(index))
    buffer.form({"a": 2})
    with pytest.raises(BufferError, match="not committed"):
        buffer.form({"a": 2})
    with pytest.raises(BufferError, match="leased batch is 0"):
        buffer.commit(1)
    buffer.commit(0)
    with pytest.raises(BufferError, match="leased batch is none"):
        buffer.commit(0)
    assert buffer.form({"a": 2}).index == 1


def test_groups_beyond_alpha_are_evicted_and_never_formed() -> None:
    buffer = SampleBuffer(alpha=1, capacity=8, retain=False, first_batch=2)
    buffer.put(group(0, start=0))
    buffer.put(group(1, start=1))
    with pytest.raises(BufferError, match="stale group"):
        buffer.form({"a": 2})
    buffer = SampleBuffer(alpha=1, capacity=8, retain=False, first_batch=2)
    buffer.put(group(0, start=0))
    buffer.put(group(1, start=1))
    assert [old.index for old in buffer.evict_stale()] == [0]
    assert [kept.index for kept in buffer.form({"a": 1}).groups] == [1]


def test_the_capacity_is_a_hard_bound() -> None:
    buffer = SampleBuffer(alpha=0, capacity=1, retain=False)
    buffer.put(group(0))
    with pytest.raises(BufferError, match="capacity of 1"):
        buffer.put(group(1))


def test_committed_batches_are_kept_until_a_checkpoint_covers_them() -> None:
    buffer = SampleBuffer(alpha=0, capacity=4, retain=True)
    for index in range(3):
        buffer.put(group(index, start=index))
        buffer.form({"a": 1})
        buffer.commit(index)
    assert [batch.index for batch in buffer.committed] == [0, 1, 2]
    buffer.release_through(1)
    assert [batch.index for batch in buffer.committed] == [2]


def test_too_few_ready_groups_is_an_error_not_a_short_batch() -> None:
    buffer = SampleBuffer(alpha=0, capacity=4, retain=False)
    buffer.put(group(0))
    with pytest.raises(BufferError, match="wants 2 groups"):
        buffer.form({"a": 2})


def mixed(index: int, *starts: int, withheld: tuple[int, ...] = ()) -> Group:
    """A group whose members started at these versions."""
    members = tuple(trajectory(TrajectoryId("a", index, index, i), start) for i, start in enumerate(starts))
    return Group("a", index, index, members, min(starts), withheld)


def test_policy_withhold_trains_the_young_members_of_a_group_only() -> None:
    buffer = SampleBuffer(alpha=1, capacity=8, retain=False, first_batch=3, stale="withhold")
    buffer.put(mixed(0, 1, 2, 3))
    buffer.put(mixed(1, 1, 1, 0))
    assert [group.index for group in buffer.evict_stale()] == [1], "nothing of it could be trained"
    (formed,) = buffer.form({"a": 1}).groups
    assert formed.withheld == (0,)
    assert formed.start_version == 1
    assert len(formed.members) == 3, "its reward is in the baseline"


def test_policy_withhold_keeps_what_was_withheld_before() -> None:
    buffer = SampleBuffer(alpha=0, capacity=8, retain=False, first_batch=1, stale="withhold")
    buffer.put(mixed(0, 1, 0, 1, withheld=(2,)))
    assert buffer.form({"a": 1}).groups[0].withheld == (1, 2)


def test_policy_train_evicts_nothing_and_withholds_nothing() -> None:
    buffer = SampleBuffer(alpha=0, capacity=8, retain=False, first_batch=9, stale="train")
    buffer.put(mixed(0, 0, 9))
    assert buffer.evict_stale() == []
    assert buffer.form({"a": 1}).groups[0].withheld == ()


POLICIES: tuple[Stale, ...] = ("abort", "wait", "withhold", "train")


@given(
    st.sampled_from(POLICIES),
    st.integers(0, 3),
    st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=3), min_size=1, max_size=8),
    st.integers(0, 9),
)
def test_what_is_left_after_eviction_forms_a_batch_within_the_bound(
    policy: Stale, alpha: int, groups: list[list[int]], index: int
) -> None:
    buffer = SampleBuffer(alpha, len(groups), retain=False, first_batch=index, stale=policy)
    for number, starts in enumerate(groups):
        buffer.put(mixed(number, *starts))
    evicted = {group.index for group in buffer.evict_stale()}
    assert buffer.evict_stale() == []
    batch = buffer.form({"a": len(buffer)})
    assert evicted | {formed.index for formed in batch.groups} == set(range(len(groups)))
    for formed in batch.groups:
        starts = [member.start_version for member in formed.members]
        assert starts == groups[formed.index]
        trained = [start for position, start in enumerate(starts) if position not in formed.withheld]
        old = [start for start in trained if start is not None and start < index - alpha]
        assert trained, "a group without anything to train"
        assert old == [] or policy == "train"
    for number in evicted:
        assert policy != "train"
        assert min(groups[number]) < index - alpha
        assert policy != "withhold" or max(groups[number]) < index - alpha
