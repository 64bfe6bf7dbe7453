"""Times of weights and KV on the way."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollart.simulation.constants import Constants
from rollart.simulation.links import broadcast_seconds, kv_seconds, pull_seconds, push_seconds, swap_seconds
from rollart.simulation.shapes import shape

CONSTANTS = Constants()
SIZES = st.floats(1e6, 1e12)


@given(SIZES, SIZES)
def test_more_bytes_never_take_less_time(first: float, second: float) -> None:
    small, large = sorted((first, second))
    for seconds in (push_seconds, pull_seconds, broadcast_seconds):
        assert seconds(small, CONSTANTS) <= seconds(large, CONSTANTS)
    assert swap_seconds(small, 1, CONSTANTS) <= swap_seconds(large, 1, CONSTANTS)


def test_many_readers_share_the_link_once_it_is_full() -> None:
    alone, few, many = (pull_seconds(16e9, CONSTANTS, readers) for readers in (1, 4, 1000))
    assert alone == few < many
    assert many == pytest.approx(1000 * 16e9 / CONSTANTS.cluster_link, rel=0.01)


def test_each_device_loads_its_part() -> None:
    whole = swap_seconds(64e9, 1, CONSTANTS) - CONSTANTS.swap_seconds
    assert swap_seconds(64e9, 4, CONSTANTS) - CONSTANTS.swap_seconds == pytest.approx(whole / 4)


def test_keys_and_values_travel_by_token_and_faster_by_rdma() -> None:
    model = shape("qwen3-8b")
    one, two = (kv_seconds(tokens, model, CONSTANTS) for tokens in (1000, 2000))
    assert two - one == pytest.approx(1000 * model.kv_bytes_per_token / CONSTANTS.rdma_rate)
    assert kv_seconds(1000, model, CONSTANTS, "tcp") > one
