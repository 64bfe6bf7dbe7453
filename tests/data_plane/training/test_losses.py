"""The policy loss: closed forms by hand, gradients against finite differences, and numbers that could overflow."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from rollart.config.training import TrainingConfig
from rollart.data_plane.training.losses import (
    Entries,
    LossSums,
    metrics_of,
    policy_loss,
    token_log_probabilities,
)


def entries_of(
    behaviour: Sequence[float],
    advantages: Sequence[float],
    proximal: Sequence[float] | None = None,
    coefficients: Sequence[float] | None = None,
    entropy_weight: float = 0.0,
) -> Entries:
    count = len(behaviour)
    return Entries(
        behaviour=torch.tensor(behaviour, dtype=torch.float32),
        proximal=None if proximal is None else torch.tensor(proximal, dtype=torch.float32),
        advantages=torch.tensor(advantages, dtype=torch.float32),
        coefficients=torch.tensor(coefficients or [1.0 / count] * count),
        entropy_weights=torch.full((count,), entropy_weight),
        on_policy=torch.ones(count, dtype=torch.bool),
    )


def evaluate(
    logprobs: Sequence[float], entries: Entries, config: TrainingConfig
) -> tuple[float, list[float], dict[str, float]]:
    """Loss, its gradient by the log-probabilities, metrics."""
    values = torch.tensor(logprobs, dtype=torch.float32, requires_grad=True)
    sums = LossSums()
    loss = policy_loss(values, torch.zeros(len(logprobs)), entries, config, sums)
    loss.backward()
    assert values.grad is not None
    return float(loss.detach()), values.grad.tolist(), metrics_of([sums])


LOG = math.log
PPO = TrainingConfig(clip_low=0.2, clip_high=0.28, correction="none")
TIS = TrainingConfig(clip_low=0.2, clip_high=0.28, correction="tis", correction_cap=2.0)


@pytest.mark.parametrize("config", [PPO, TIS])
@pytest.mark.parametrize(
    ("ratio", "advantage", "surrogate", "gradient"),
    [
        (1.0, 2.0, 2.0, 2.0),
        (1.2, 1.0, 1.2, 1.2),
        (1.27, 1.0, 1.27, 1.27),  # between 1.2 and 1.28: clip-higher leaves it
        (1.5, 1.0, 1.28, 0.0),
        (1.5, -1.0, -1.5, -1.5),  # a bad token that became likelier keeps its gradient
        (0.5, 1.0, 0.5, 0.5),
        (0.5, -1.0, -0.8, 0.0),
        (0.9, -3.0, -2.7, -2.7),
        (0.3, 0.0, 0.0, 0.0),
    ],
)
def test_the_clipped_surrogate_by_hand(
    config: TrainingConfig, ratio: float, advantage: float, surrogate: float, gradient: float
) -> None:
    loss, slope, _ = evaluate([LOG(0.1 * ratio)], entries_of([LOG(0.1)], [advantage]), config)
    assert loss == pytest.approx(-surrogate, rel=1e-5)
    assert slope == pytest.approx([-gradient], rel=1e-5)


def test_the_ratio_of_a_token_that_became_far_likelier_is_cut_at_the_cap() -> None:
    entries = entries_of([LOG(0.001)], [-1.0])
    loss, slope, metrics = evaluate([LOG(0.5)], entries, TIS)
    assert [loss, *slope] == pytest.approx([2.0, 2.0])
    assert metrics["truncated_share"] == 1.0
    assert evaluate([LOG(0.5)], entries, PPO)[0] == pytest.approx(500.0, rel=1e-4)


@pytest.mark.parametrize(
    ("target", "proximal", "behaviour", "advantage", "surrogate", "gradient"),
    [
        (0.10, 0.10, 0.05, 1.0, 2.0, 2.0),  # weight 2, ratio 1
        (0.10, 0.10, 0.01, 1.0, 2.0, 2.0),  # weight 10, cut at 2
        (0.15, 0.10, 0.10, 1.0, 1.28, 0.0),  # clipped against the proximal policy
        (0.15, 0.10, 0.20, 1.0, 0.64, 0.0),  # clipped, weight 0.5
        (0.12, 0.10, 0.20, -1.0, -0.6, -0.6),
        (0.05, 0.10, 0.20, -1.0, -0.4, 0.0),
    ],
)
def test_several_steps_are_decoupled_by_hand(
    target: float, proximal: float, behaviour: float, advantage: float, surrogate: float, gradient: float
) -> None:
    entries = entries_of([LOG(behaviour)], [advantage], [LOG(proximal)])
    loss, slope, _ = evaluate([LOG(target)], entries, TIS)
    assert loss == pytest.approx(-surrogate, rel=1e-5)
    assert slope == pytest.approx([-gradient], rel=1e-5)


def test_without_correction_the_weights_are_one() -> None:
    entries = entries_of([LOG(0.05)], [1.0], [LOG(0.1)])
    assert evaluate([LOG(0.1)], entries, PPO)[0] == pytest.approx(-2.0), "nothing is cut without a correction"
    assert evaluate([LOG(0.1)], entries_of([LOG(0.1)], [1.0]), PPO)[0] == pytest.approx(-1.0)


def test_metrics_by_hand() -> None:
    entries = Entries(
        behaviour=torch.log(torch.tensor([0.1, 0.1, 0.2, 0.1])),
        proximal=None,
        advantages=torch.tensor([1.0, -1.0, 1.0, -1.0]),
        coefficients=torch.tensor([0.25] * 4),
        entropy_weights=torch.zeros(4),
        on_policy=torch.tensor([True, True, False, False]),
    )
    values = torch.log(torch.tensor([0.1, 0.1, 0.4, 0.05]))
    sums = LossSums()
    policy_loss(values, torch.tensor([0.5, 1.5, 1.0, 1.0]), entries, TIS, sums)
    metrics = metrics_of([sums])
    assert metrics["loss"] == pytest.approx(-(1 - 1 + 1.28 - 0.8) / 4)
    assert metrics["entropy"] == pytest.approx(1.0)
    assert metrics["clip_share"] == 0.5
    assert metrics["ratio_mean"] == pytest.approx((1 + 1 + 2 + 0.5) / 4)
    assert metrics["ratio_max"] == pytest.approx(2.0)
    assert metrics["logprob_gap"] == pytest.approx(2 * LOG(2) / 4, rel=1e-5)
    assert metrics["logprob_gap_on_policy"] == pytest.approx(0.0, abs=1e-6)


def test_metrics_of_no_entries_have_no_means() -> None:
    assert metrics_of([LossSums()]) == {"loss": 0.0}


small = st.floats(-3.0, -0.05)


def smooth(ratio: float) -> bool:
    """Away from the corners of the surrogate, where the derivative jumps."""
    return all(abs(ratio - corner) > 0.02 for corner in (0.8, 1.28, 2.0))


@settings(max_examples=100, deadline=None)
@given(
    target=small,
    behaviour=small,
    advantage=st.floats(-3, 3).filter(lambda value: abs(value) > 0.05),
    correction=st.sampled_from(["tis", "none"]),
)
def test_gradients_equal_finite_differences(target: float, behaviour: float, advantage: float, correction: Any) -> None:
    """Where nothing is truncated: a truncated factor is a constant, by intention not the derivative."""
    config = TrainingConfig(correction=correction, correction_cap=1e9)
    if not smooth(math.exp(target - behaviour)):
        return
    entries = entries_of([behaviour], [advantage])
    step = 1e-3
    up, down = (evaluate([target + sign * step], entries, config)[0] for sign in (1, -1))
    slope = evaluate([target], entries, config)[1][0]
    assert slope == pytest.approx((up - down) / (2 * step), rel=2e-2, abs=2e-3)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(-4, 4), min_size=3, max_size=6), st.integers(0, 2), st.floats(0.0, 1.0))
def test_gradients_by_logits_equal_finite_differences(logits: list[float], target: int, bonus: float) -> None:
    entries = entries_of([-1.0], [0.7], entropy_weight=bonus)
    config = TrainingConfig(correction_cap=1e9, clip_low=0.999, clip_high=1e9)

    def loss_of(values: Tensor) -> Tensor:
        logprobs, entropies = token_log_probabilities(
            values[None], torch.tensor([0]), torch.tensor([target]), entropy_gradient=True
        )
        return policy_loss(logprobs, entropies, entries, config, LossSums())

    at = torch.tensor(logits, requires_grad=True)
    loss_of(at).backward()
    assert at.grad is not None
    step = 0.01
    for position in range(len(logits)):
        shift = torch.zeros(len(logits))
        shift[position] = step
        difference = float(loss_of(at.detach() + shift) - loss_of(at.detach() - shift)) / (2 * step)
        assert at.grad[position].item() == pytest.approx(difference, rel=2e-2, abs=3e-3)


def test_log_probabilities_and_entropies_by_hand() -> None:
    logits = torch.log(torch.tensor([[0.5, 0.25, 0.25], [0.1, 0.1, 0.8]]))
    values, entropies = token_log_probabilities(
        logits, torch.tensor([0, 0, 1]), torch.tensor([0, 2, 1]), entropy_gradient=False
    )
    assert values.exp().tolist() == pytest.approx([0.5, 0.25, 0.1])
    first, second = 1.5 * LOG(2), -(0.2 * LOG(0.1) + 0.8 * LOG(0.8))
    assert entropies.tolist() == pytest.approx([first, first, second])


@pytest.mark.parametrize("correction", ["tis", "none"])
def test_extreme_probabilities_stay_finite(correction: Any) -> None:
    """A probability that underflows, a ratio that would overflow, and an entropy of nearly nothing."""
    logits = torch.tensor([[300.0, -300.0, 0.0], [0.0, 500.0, 0.0]], requires_grad=True)
    values, entropies = token_log_probabilities(
        logits, torch.tensor([0, 1]), torch.tensor([1, 1]), entropy_gradient=True
    )
    entries = entries_of([0.0, -700.0], [-1.0, -1.0], proximal=None, entropy_weight=0.1)
    loss = policy_loss(values, entropies, entries, TrainingConfig(correction=correction), LossSums())
    loss.backward()
    assert math.isfinite(loss.item())
    assert logits.grad is not None
    assert logits.grad.isfinite().all()
