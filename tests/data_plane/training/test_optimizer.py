"""AdamW by hand, schedules, clipping, and a state without pickles."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn

from rollart.config.training import TrainingConfig
from rollart.data_plane.training.optimizer import Optimizer, entropy_scale, learning_rate


def rates(iterations: int, **settings: Any) -> list[float]:
    config = TrainingConfig(learning_rate=1.0, **settings)
    return [learning_rate(config, iteration, iterations) for iteration in range(iterations)]


def test_schedules_by_hand() -> None:
    assert rates(3) == [1.0, 1.0, 1.0]
    assert rates(4, warmup=2) == [0.5, 1.0, 1.0, 1.0]
    assert rates(5, schedule="linear") == pytest.approx([1.0, 0.75, 0.5, 0.25, 0.0])
    assert rates(5, schedule="linear", warmup=2, final_learning_rate=0.2) == pytest.approx([0.5, 1.0, 1.0, 0.6, 0.2])
    cosine = rates(5, schedule="cosine", final_learning_rate=0.1)
    assert cosine == pytest.approx([0.1 + 0.9 * (1 + math.cos(math.pi * k / 4)) / 2 for k in range(5)])


def test_after_the_last_iteration_the_final_rate_stays() -> None:
    config = TrainingConfig(learning_rate=1.0, schedule="linear", final_learning_rate=0.3)
    assert learning_rate(config, 50, 10) == pytest.approx(0.3)
    assert learning_rate(config, 0, 1) == 1.0


def test_the_entropy_bonus_falls_linearly() -> None:
    config = TrainingConfig(entropy_end=0.2)
    assert [entropy_scale(config, k, 5) for k in (0, 2, 4, 9)] == pytest.approx([1.0, 0.6, 0.2, 0.2])


def parameters() -> dict[str, nn.Parameter]:
    return {"matrix": nn.Parameter(torch.ones(2, 2)), "norm": nn.Parameter(torch.ones(2))}


def test_one_step_by_hand_with_decay_on_matrices_only() -> None:
    weights = parameters()
    optimizer = Optimizer(weights, TrainingConfig(weight_decay=0.5, max_grad_norm=1e9))
    for parameter in weights.values():
        parameter.grad = torch.full_like(parameter, 3.0)
    assert optimizer.step(0.1) == pytest.approx(3.0 * math.sqrt(6))
    assert weights["norm"].tolist() == pytest.approx([0.9, 0.9])  # the first Adam step has size rate
    assert weights["matrix"].flatten().tolist() == pytest.approx([1 - 0.1 * 0.5 - 0.1] * 4)


def test_gradients_are_clipped_to_the_global_norm() -> None:
    weights = parameters()
    optimizer = Optimizer(weights, TrainingConfig(max_grad_norm=2.0))
    for parameter in weights.values():
        parameter.grad = torch.full_like(parameter, 10.0)
    optimizer.step(0.1)
    state = optimizer.state()
    total = sum(float((state[f"{name}.exp_avg"] / 0.1).square().sum()) for name in weights)
    assert math.sqrt(total) == pytest.approx(2.0, rel=1e-4)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_gradient_that_is_not_finite_changes_nothing(bad: float) -> None:
    weights = parameters()
    optimizer = Optimizer(weights, TrainingConfig())
    weights["norm"].grad = torch.tensor([1.0, bad])
    with pytest.raises(FloatingPointError, match="gradient norm is"):
        optimizer.step(0.1)
    assert weights["matrix"].flatten().tolist() == [1.0] * 4
    assert all(not tensor.any() for tensor in optimizer.state().values())


def test_state_moves_to_another_optimizer_and_misfits_are_named() -> None:
    first, second = parameters(), parameters()
    source, target = Optimizer(first, TrainingConfig()), Optimizer(second, TrainingConfig())
    first["norm"].grad = torch.tensor([1.0, -1.0])
    source.step(0.1)
    saved = {name: tensor.clone() for name, tensor in source.state().items()}
    target.load_state(saved)
    assert all(torch.equal(tensor, saved[name]) for name, tensor in target.state().items())
    with pytest.raises(ValueError, match=r"lacks 'norm\.step'"):
        target.load_state({name: tensor for name, tensor in saved.items() if name != "norm.step"})
    with pytest.raises(ValueError, match=r"has an unknown 'extra\.step'"):
        target.load_state(saved | {"extra.step": torch.zeros(())})
    with pytest.raises(ValueError, match=r"'norm\.exp_avg' is \[3\], not \[2\]"):
        target.load_state(saved | {"norm.exp_avg": torch.zeros(3)})
