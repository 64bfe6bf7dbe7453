"""The SampleBuffer's lease, its bound, and what it refuses."""

from __future__ import annotations

import pytest
from builders import group

from rollart.control_plane.sample_buffer import BufferError, SampleBuffer


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
