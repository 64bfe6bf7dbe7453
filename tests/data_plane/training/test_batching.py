"""Rows, totals, minibatches and packing: what enters the loss, with which weight, in which order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollart.config.config import Config
from rollart.data_plane.training.batching import MicroBatch, Row, micro_batches, minibatches_of, rows_of, totals_of
from rollart.types import (
    Group,
    LengthSpan,
    Limit,
    Score,
    Segment,
    TokenSpan,
    TrainBatch,
    Trajectory,
    TrajectoryId,
    Turn,
    VersionRun,
)

MakeBatch = Callable[..., TrainBatch]
MakeConfig = Callable[..., Config]


def two_turns(member: int, reward: float = 1.0, **fields: Any) -> Trajectory:
    """Observation 5 6, action 7 8; observation 9, action 10 of a newer version."""
    turns = (
        Turn(TokenSpan.of([5, 6]), TokenSpan.of([7, 8], [-0.5, -0.25]), (VersionRun(2, 1), VersionRun(3, 1))),
        Turn(TokenSpan.of([9]), TokenSpan.of([10], [-2.0]), (VersionRun(3, 1),)),
    )
    return Trajectory(TrajectoryId("a", 0, 0, member), 0, (Segment(turns),), Score(reward), **fields)


def batch_of(*members: Trajectory, index: int = 3, **fields: Any) -> TrainBatch:
    return TrainBatch(index, (Group(members[0].id.domain, 0, 0, members, 2, **fields),))


def test_the_loss_covers_generated_tokens_only(make_config: MakeConfig) -> None:
    config = make_config()
    row = rows_of(batch_of(two_turns(0), two_turns(1, 0.0)), config.domains, config.training)[0]
    assert row.ids.tolist() == [5, 6, 7, 8, 9]
    assert row.slots.tolist() == [1, 2, 4]
    assert row.targets.tolist() == [7, 8, 10]
    assert row.behaviour.tolist() == [-0.5, -0.25, -2.0]
    assert row.on_policy.tolist() == [False, True, True]
    assert row.advantage > 0
    assert row.trajectory_tokens == 3


def test_rows_are_in_the_order_of_ids_and_leave_out_who_is_not_trained(make_config: MakeConfig) -> None:
    config = make_config()
    members = (two_turns(2), two_turns(0, 0.0, limit=Limit.CONTEXT), two_turns(1, 5.0))
    rows = rows_of(batch_of(*members, withheld=(2,)), config.domains, config.training)
    assert [row.id.member for row in rows] == [0, 2], "member 1 is withheld; one that was cut is not for that"


def test_each_segment_is_a_row_of_one_sequence(make_config: MakeConfig) -> None:
    config = make_config(loss_norm="sequence")
    forked = msgspec.structs.replace(two_turns(0), segments=two_turns(0).segments * 2)
    rows = rows_of(batch_of(forked, two_turns(1)), config.domains, config.training)
    totals = totals_of(rows)
    assert [(row.id.member, row.segment) for row in rows] == [(0, 0), (0, 1), (1, 0)]
    assert (totals.tokens, totals.sequences) == (9, 2)
    assert totals.coefficient(rows[0], "sequence") == pytest.approx(1 / (2 * 6))
    assert totals.coefficient(rows[2], "sequence") == pytest.approx(1 / (2 * 3))


def with_turn(**fields: Any) -> Trajectory:
    turn = msgspec.structs.replace(next(two_turns(0).turns()), **fields)
    return msgspec.structs.replace(two_turns(0), segments=(Segment((turn,)),))


@pytest.mark.parametrize(
    ("trajectory", "message"),
    [
        (with_turn(observation=LengthSpan(2)), "has lengths instead of tokens"),
        (with_turn(observation=TokenSpan.of([])), "begins with a generated token"),
        (with_turn(action=TokenSpan.of([7, 8])), "without a log-probability each"),
        (with_turn(action=TokenSpan.of([7, 8], [-1.0, -np.inf])), "log-probability that is not finite"),
        (with_turn(versions=(VersionRun(3, 1),)), "2 generated tokens, but versions for 1"),
    ],
)
def test_a_trajectory_that_cannot_be_trained_is_named(
    make_config: MakeConfig, trajectory: Trajectory, message: str
) -> None:
    config = make_config()
    with pytest.raises(ValueError, match=f"trajectory a/0/0/0/0 .*{message}"):
        rows_of(batch_of(trajectory, two_turns(1)), config.domains, config.training)


def entries_of(batch: MicroBatch) -> Counter[Any]:
    """What each entry is predicted from and how it counts."""
    history: dict[int, tuple[int, ...]] = {}
    for path in batch.paths:
        for end, node in enumerate(path, 1):
            history[int(node)] = tuple(batch.tokens[path[:end]].tolist())
            assert batch.positions[node] == end - 1
    nodes = batch.predictions[batch.entry_predictions]
    temperatures = batch.prediction_temperatures[batch.entry_predictions]
    rest = (batch.targets, batch.behaviour, batch.on_policy, batch.advantages, batch.coefficients, temperatures)
    return Counter(
        (history[int(node)], *values) for node, *values in zip(nodes, *(part.tolist() for part in rest), strict=True)
    )


def expected_entries(rows: list[Row], config: Config) -> Counter[Any]:
    totals = totals_of(rows)
    found: Counter[Any] = Counter()
    for row in rows:
        weight = float(np.float32(totals.coefficient(row, config.training.loss_norm)))
        for slot, target, logprob, fresh in zip(row.slots, row.targets, row.behaviour, row.on_policy, strict=True):
            history = tuple(row.ids[: slot + 1].tolist())
            advantage, temperature = float(np.float32(row.advantage)), float(np.float32(row.temperature))
            found[(history, int(target), float(logprob), bool(fresh), advantage, weight, temperature)] += 1
    return found


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    budget=st.integers(1, 200),
    share=st.booleans(),
    norm=st.sampled_from(["token", "sequence", "domain"]),
)
def test_packing_keeps_every_entry_with_its_history_and_weight(
    make_batch: MakeBatch, make_config: MakeConfig, seed: int, budget: int, share: bool, norm: str
) -> None:
    config = make_config(micro_batch_tokens=budget, loss_norm=norm)
    rows = rows_of(make_batch(seed, groups=4), config.domains, config.training)
    packed = list(micro_batches(rows, totals_of(rows), config.training, share_prefixes=share))
    assert sum((entries_of(part) for part in packed), Counter()) == expected_entries(rows, config)
    assert sum(part.coefficients.astype(np.float64).sum() for part in packed) == pytest.approx(1.0, abs=1e-5)
    for part in packed:
        size = len(part.tokens) if share else max(map(len, part.paths)) * len(part.paths)
        assert size <= budget or len(part.paths) == 1
        assert (np.diff(part.entry_predictions) >= 0).all()
        if share:
            prefixes = {tuple(part.tokens[path[:end]]) for path in part.paths for end in range(1, len(path) + 1)}
            assert len(part.tokens) == len(prefixes), "every distinct prefix is computed exactly once"


def test_minibatches_are_whole_groups_across_the_domains(make_batch: MakeBatch, make_config: MakeConfig) -> None:
    config = make_config()
    rows = rows_of(make_batch(0, groups=8), config.domains, config.training)
    parts = minibatches_of(rows, 2)
    assert sorted(map(id, rows)) == sorted(id(row) for part in parts for row in part)
    keys = [{(row.id.domain, row.id.group) for row in part} for part in parts]
    assert keys[0].isdisjoint(keys[1])
    assert all({domain for domain, _ in part} == {"a", "b"} for part in keys)
    assert len(minibatches_of(rows, 100)) == 8
