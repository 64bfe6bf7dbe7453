"""Padding, packing, micro-batching and a data-parallel split change neither loss nor gradient (invariant 9).

Each wrong variant at the end breaks one of these, and the same property must notice it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import PreTrainedModel

from rollart.config.config import Config
from rollart.config.training import TrainingConfig
from rollart.data_plane.training.batching import MicroBatch, Row, Totals, micro_batches, rows_of, totals_of
from rollart.data_plane.training.fast_forward import FastForward
from rollart.data_plane.training.forward import PaddedForward, PolicyForward
from rollart.data_plane.training.losses import Entries, LossSums, policy_loss
from rollart.data_plane.training.models import load_model
from rollart.types import TrainBatch

MakeBatch = Callable[..., TrainBatch]
MakeConfig = Callable[..., Config]
Result = tuple[float, Tensor]


@pytest.fixture(scope="module")
def model(model_folder: Path) -> PreTrainedModel:
    torch.set_num_threads(1)
    model = load_model(model_folder)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    return model


def loss_and_gradient(
    model: PreTrainedModel, forward: PolicyForward, packed: Iterable[MicroBatch], config: TrainingConfig
) -> Result:
    model.zero_grad(set_to_none=False)
    sums = LossSums()
    for part in packed:
        fields = (part.advantages, part.coefficients, part.entropy_weights, part.on_policy)
        entries = Entries(torch.from_numpy(part.behaviour), None, *map(torch.from_numpy, fields))

        def loss(values: Tensor, entropies: Tensor, some: slice, entries: Entries = entries) -> Tensor:
            return policy_loss(values, entropies, entries.part(some), config, sums)

        forward.accumulate(part, loss, entropy_gradient=True)
    forward.collect()
    gradient = torch.cat([parameter.grad.reshape(-1) for parameter in model.parameters() if parameter.grad is not None])
    return sums.read().loss, gradient


def row_by_row(model: PreTrainedModel, rows: Sequence[Row], totals: Totals, config: TrainingConfig) -> Result:
    """The reference: the library's forward pass on one row at a time, which neither pads nor shares."""
    packed = [part for row in rows for part in micro_batches([row], totals, config, share_prefixes=False)]
    return loss_and_gradient(model, PaddedForward(model), packed, config)


def assert_same(found: Result, expected: Result) -> None:
    assert found[0] == pytest.approx(expected[0], rel=1e-4, abs=1e-6)
    assert float((found[1] - expected[1]).norm()) <= 1e-4 * float(expected[1].norm()) + 1e-7


@settings(max_examples=10, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    budget=st.integers(1, 300),
    packed=st.booleans(),
    norm=st.sampled_from(["token", "sequence", "domain"]),
    ranks=st.integers(1, 3),
)
def test_loss_and_gradient_do_not_depend_on_the_layout(
    model: PreTrainedModel,
    make_batch: MakeBatch,
    make_config: MakeConfig,
    seed: int,
    budget: int,
    packed: bool,
    norm: str,
    ranks: int,
) -> None:
    config = make_config(micro_batch_tokens=budget, loss_norm=norm, entropy_bonus=0.1)
    rows = rows_of(make_batch(seed, groups=2, size=3), config.domains, config.training)
    totals = totals_of(rows)
    forward = FastForward(model) if packed else PaddedForward(model)
    parts = [rows[rank::ranks] for rank in range(ranks)]
    layout = [
        part
        for share in parts
        for part in micro_batches(share, totals, config.training, share_prefixes=forward.share_prefixes)
    ]
    found = loss_and_gradient(model, forward, layout, config.training)
    assert_same(found, row_by_row(model, rows, totals, config.training))


def test_tokens_outside_the_batch_never_leak(
    model_folder: Path, make_batch: MakeBatch, make_config: MakeConfig
) -> None:
    """The embeddings of tokens that no row has, the padding token's among them, are not numbers."""
    config = make_config(micro_batch_tokens=100)
    rows = rows_of(make_batch(1), config.domains, config.training)
    used = np.unique(np.concatenate([np.r_[row.ids, row.targets] for row in rows]))
    poisoned = load_model(model_folder)
    with torch.no_grad():
        poisoned.lm_head.weight = torch.nn.Parameter(poisoned.lm_head.weight.clone())  # untied: logits need all rows
        unused = [token for token in range(poisoned.config.vocab_size) if token not in used]
        poisoned.get_input_embeddings().weight[unused] = torch.nan
    for parameter in poisoned.parameters():
        parameter.grad = torch.zeros_like(parameter)
    assert 0 in unused
    for forward in (FastForward(poisoned), PaddedForward(poisoned)):
        layout = micro_batches(rows, totals_of(rows), config.training, share_prefixes=forward.share_prefixes)
        loss, gradient = loss_and_gradient(poisoned, forward, layout, config.training)
        assert np.isfinite(loss)
        assert gradient.isfinite().all()


def with_local_counts(rows: Sequence[Row], totals: Totals, config: TrainingConfig) -> list[MicroBatch]:
    """Each micro-batch divides by its own counts, and the mean is taken."""
    layout = list(micro_batches(rows, totals, config, share_prefixes=False))
    return [replace(part, coefficients=part.coefficients / part.coefficients.sum() / len(layout)) for part in layout]


def with_a_padding_row(rows: Sequence[Row], totals: Totals, config: TrainingConfig) -> list[MicroBatch]:
    """The last row is repeated to fill up a micro-batch."""
    return list(micro_batches([*rows, rows[-1]], totals, config, share_prefixes=False))


def with_padding_counted(rows: Sequence[Row], totals: Totals, config: TrainingConfig) -> list[MicroBatch]:
    """The divisor counts all tokens of the rows instead of the generated ones."""
    counted = replace(totals, tokens=sum(len(row.ids) for row in rows))
    return list(micro_batches(rows, counted, config, share_prefixes=False))


def with_shifted_targets(rows: Sequence[Row], totals: Totals, config: TrainingConfig) -> list[MicroBatch]:
    """Actions are predicted one token late."""
    late = [replace(row, slots=np.minimum(row.slots + 1, len(row.ids) - 1)) for row in rows]
    return list(micro_batches(late, totals, config, share_prefixes=False))


def with_positions_from_the_branch(rows: Sequence[Row], totals: Totals, config: TrainingConfig) -> list[MicroBatch]:
    """Positions start again where a row leaves the prefix that it shares."""
    return [
        replace(
            part,
            positions=np.concatenate([np.arange(len(p) - o) for p, o in zip(part.paths, part.owned_from, strict=True)]),
        )
        for part in micro_batches(rows, totals, config, share_prefixes=True)
    ]


def with_anothers_beginning(rows: Sequence[Row], totals: Totals, config: TrainingConfig) -> list[MicroBatch]:
    """A row is packed onto a prefix that differs from its own in one token."""
    first = rows[0].ids[0]
    merged = [replace(row, ids=np.r_[first, row.ids[1:]].astype(np.int32)) for row in rows]
    return list(micro_batches(merged, totals, config, share_prefixes=True))


WRONG: dict[str, Any] = {
    function.__name__: function
    for function in (
        with_local_counts,
        with_a_padding_row,
        with_padding_counted,
        with_shifted_targets,
        with_positions_from_the_branch,
        with_anothers_beginning,
    )
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_variants_are_noticed(
    model: PreTrainedModel, make_batch: MakeBatch, make_config: MakeConfig, name: str
) -> None:
    config = make_config(micro_batch_tokens=120, entropy_bonus=0.1)
    rows = rows_of(make_batch(7), config.domains, config.training)
    totals = totals_of(rows)
    layout = WRONG[name](rows, totals, config.training)
    shares = name in ("with_positions_from_the_branch", "with_anothers_beginning")
    forward = FastForward(model) if shares else PaddedForward(model)
    found = loss_and_gradient(model, forward, layout, config.training)
    with pytest.raises(AssertionError):
        assert_same(found, row_by_row(model, rows, totals, config.training))
