"""Advantages of groups: closed forms, exact zeros, who is trained, and user-supplied estimators."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollart.config.training import TrainingConfig
from rollart.data_plane.training.advantages import STD_FLOOR, batch_advantages, group_advantages, trained_members
from rollart.types import Group, Limit, Score, Segment, TokenSpan, Trajectory, TrajectoryId, Turn, VersionRun

TURN = Turn(TokenSpan.of([5, 6]), TokenSpan.of([7], [-1.0]), (VersionRun(0, 1),))
rewards = st.lists(st.floats(-1e6, 1e6, allow_nan=False), min_size=2, max_size=9)


def group_of(values: Sequence[float | None], domain: str = "a", **fields: Any) -> Group:
    members = tuple(
        Trajectory(
            TrajectoryId(domain, 0, 0, member), 0, (Segment((TURN,)),), None if value is None else Score(float(value))
        )
        for member, value in enumerate(values)
    )
    return Group(domain, 0, 0, members, 0, **fields)


def test_grpo_by_hand() -> None:
    values = group_advantages(group_of([1, 0, 0, 1, 1]), TrainingConfig())
    deviation = math.sqrt(0.6 * 0.4)
    assert values == pytest.approx(np.array([0.4, -0.6, -0.6, 0.4, 0.4]) / (deviation + STD_FLOOR))


def test_without_division_it_is_reward_minus_mean() -> None:
    assert group_advantages(group_of([3, 1, 2]), TrainingConfig(advantage_norm="none")) == pytest.approx([1, -1, 0])


def test_by_domain_spreads_are_pooled_over_the_batch() -> None:
    groups = [group_of([0, 2]), group_of([5, 5]), group_of([0, 100], domain="b")]
    values = batch_advantages(groups, TrainingConfig(advantage_norm="domain"))
    assert values[0] == pytest.approx(np.array([-1, 1]) / (math.sqrt(2 / 4) + STD_FLOOR))
    assert values[1].tolist() == [0.0, 0.0]
    assert values[2] == pytest.approx([-1, 1], rel=1e-5)


@given(st.floats(-1e9, 1e9), st.integers(1, 12), st.sampled_from(["std", "domain", "none"]))
def test_equal_rewards_give_exactly_zero(value: float, size: int, norm: Any) -> None:
    config = TrainingConfig(advantage_norm=norm)
    assert batch_advantages([group_of([value] * size)], config)[0].tolist() == [0.0] * size


@given(rewards)
def test_advantages_balance_and_keep_the_order_of_rewards(values: list[float]) -> None:
    found = group_advantages(group_of(values), TrainingConfig())
    assert abs(found.sum()) < 1e-6
    order = np.argsort(values, kind="stable")
    assert (np.diff(found[order]) >= 0).all()


def test_a_missing_or_infinite_reward_is_an_error_that_names_the_trajectory() -> None:
    with pytest.raises(ValueError, match="trajectory a/0/0/1/0 has no score"):
        group_advantages(group_of([1, None]), TrainingConfig())
    with pytest.raises(ValueError, match="trajectory a/0/0/0/0 has reward nan"):
        group_advantages(group_of([math.nan, 1]), TrainingConfig())


def test_withheld_members_count_in_the_baseline_and_are_not_trained() -> None:
    group = group_of([0, 0, 3], withheld=(2,))
    assert group_advantages(group, TrainingConfig(advantage_norm="none")) == pytest.approx([-1, -1, 2])
    assert trained_members(group) == [0, 1]


def test_a_cut_member_is_trained_unless_its_group_withholds_it_and_one_without_tokens_never() -> None:
    group = group_of([0, 1, 2])
    cut = Trajectory(group.members[1].id, 0, group.members[1].segments, Score(1.0), Limit.TURNS)
    silent = Trajectory(group.members[2].id, 0, (Segment(()),), Score(2.0))
    members = (group.members[0], cut, silent)
    assert trained_members(Group("b", 0, 0, members, 0)) == [0, 1]
    assert trained_members(Group("b", 0, 0, members, 0, withheld=(1,))) == [0]


def best_only(group: Group, config: TrainingConfig) -> Any:
    scores = [member.score.value for member in group.members if member.score]
    return [float(score == max(scores)) for score in scores]


def too_few(group: Group, config: TrainingConfig) -> Any:
    return [1.0]


@pytest.fixture
def as_module(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], str]:
    """Make a function importable by the path that is returned."""

    def make(function: Any) -> str:
        module = type(math)("my_estimators")
        module.estimate = function  # type: ignore[attr-defined]
        monkeypatch.setitem(__import__("sys").modules, "my_estimators", module)
        return "my_estimators:estimate"

    return make


def test_an_estimator_of_the_users_own(as_module: Callable[[Any], str]) -> None:
    config = TrainingConfig(algorithm=as_module(best_only))
    assert group_advantages(group_of([1, 3, 2]), config).tolist() == [0.0, 1.0, 0.0]


def test_estimators_that_do_not_exist_or_misbehave(as_module: Callable[[Any], str]) -> None:
    with pytest.raises(LookupError, match="no algorithm named 'grop': did you mean 'grpo'"):
        group_advantages(group_of([1, 2]), TrainingConfig(algorithm="grop"))
    with pytest.raises(ValueError, match="must return 2 finite numbers"):
        group_advantages(group_of([1, 2]), TrainingConfig(algorithm=as_module(too_few)))
