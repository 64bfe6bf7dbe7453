"""Time of a train step."""

from __future__ import annotations

import pytest

from rollart.resource_plane.hardware import hardware
from rollart.simulation.constants import Constants
from rollart.simulation.shapes import shape
from rollart.simulation.training_model import PROFILED_DEVICES, train_flops, train_seconds

CONSTANTS = Constants()
H800 = hardware("H800")


def test_the_operations_are_six_for_each_parameter_and_token_and_two_for_log_probabilities() -> None:
    model = shape("qwen3-8b")
    short = train_flops(model, CONSTANTS, [1] * 1000)
    assert short == pytest.approx(8 * 1000 * model.active_parameters, rel=0.1)


def test_long_sequences_attend_to_more() -> None:
    model = shape("qwen3-8b")
    assert train_flops(model, CONSTANTS, [32_000]) > 1.2 * train_flops(model, CONSTANTS, [1_000] * 32)


def test_twice_the_devices_take_more_than_half_the_time() -> None:
    model, tokens = shape("qwen3-8b"), [8_000] * 128
    first = train_seconds(model, H800, PROFILED_DEVICES, CONSTANTS, tokens) - CONSTANTS.train_fixed_seconds
    second = train_seconds(model, H800, 2 * PROFILED_DEVICES, CONSTANTS, tokens) - CONSTANTS.train_fixed_seconds
    assert second == pytest.approx(first / 2 * 2**CONSTANTS.train_scaling_loss)


def test_at_the_profiled_size_the_efficiency_is_the_fitted_one() -> None:
    model, tokens = shape("qwen3-8b"), [8_000] * 128
    seconds = train_seconds(model, H800, PROFILED_DEVICES, CONSTANTS, tokens) - CONSTANTS.train_fixed_seconds
    peak = PROFILED_DEVICES * H800.flops
    assert train_flops(model, CONSTANTS, tokens) / (seconds * peak) == pytest.approx(CONSTANTS.train_efficiency)


def test_experts_train_on_what_is_active() -> None:
    tokens = [8_000] * 128
    dense, experts = (
        train_seconds(shape(name), H800, 32, CONSTANTS, tokens) for name in ("qwen3-32b", "qwen3-30b-a3b")
    )
    assert experts < dense / 3
