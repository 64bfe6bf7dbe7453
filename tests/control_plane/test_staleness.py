"""The admission bound: nothing is started that could not be trained within alpha."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rollart.control_plane.staleness import admission_limit, is_stale, oldest_admissible_start


@given(st.integers(0, 50), st.integers(0, 6), st.integers(0, 6), st.integers(1, 9), st.integers(1, 60))
def test_a_full_admission_started_now_fits_the_batches_left(
    version: int, alpha: int, lead: int, groups: int, iterations: int
) -> None:
    next_batch = version + lead
    limit = admission_limit(version, next_batch, alpha, groups, iterations)
    assert limit % groups == 0
    batches = range(next_batch, next_batch + limit // groups)
    assert all(not is_stale(version, batch, alpha) for batch in batches)
    assert all(batch < iterations for batch in batches)
    following = next_batch + limit // groups
    assert is_stale(version, following, alpha) or following >= iterations


def test_alpha_zero_admits_one_batch_only_at_the_newest_version() -> None:
    assert admission_limit(3, 3, 0, 8, 100) == 8
    assert admission_limit(3, 4, 0, 8, 100) == 0


def test_a_trajectory_without_a_first_token_is_never_stale() -> None:
    assert not is_stale(None, 1000, 0)
    assert oldest_admissible_start(7, 2) == 5
    assert is_stale(4, 7, 2)
    assert not is_stale(5, 7, 2)
