"""The roofline of an engine: what bounds it, and how it grows."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollart.resource_plane.hardware import hardware
from rollart.simulation.constants import Constants
from rollart.simulation.engine_model import EngineModel
from rollart.simulation.shapes import shape

CONSTANTS = Constants()


def engine(model: str = "qwen3-8b", name: str = "H800", devices: int = 1) -> EngineModel:
    return EngineModel(shape(model), hardware(name), devices, CONSTANTS)


def test_one_request_decodes_at_the_speed_of_reading_the_weights() -> None:
    base, _ = engine().decode(1)
    reading = shape("qwen3-8b").bytes_read(1) / (hardware("H800").bandwidth * CONSTANTS.bandwidth_efficiency)
    assert base == pytest.approx(reading + CONSTANTS.step_seconds + CONSTANTS.row_seconds)


def test_a_long_prompt_is_bound_by_compute() -> None:
    tokens = 8192
    seconds = engine().mixed(0, 1, 0, tokens, 0)
    flops = tokens * shape("qwen3-8b").layer_flops + shape("qwen3-8b").head_flops
    computing = flops / (hardware("H800").flops * CONSTANTS.gemm_efficiency)
    assert seconds == pytest.approx(computing + CONSTANTS.step_seconds + CONSTANTS.row_seconds)


def test_h800_computes_prompts_faster_and_h20_decodes_faster() -> None:
    h800, h20 = engine(), engine(name="H20")
    assert h20.mixed(0, 1, 0, 8192, 8192**2 // 2) > 4 * h800.mixed(0, 1, 0, 8192, 8192**2 // 2)
    assert h20.decode(8)[0] < h800.decode(8)[0]
    assert h20.decode(8)[1] < h800.decode(8)[1]


@given(st.integers(0, 64), st.integers(0, 8), st.integers(0, 100_000), st.integers(0, 4096))
def test_more_work_never_takes_less_time(rows: int, chunks: int, context: int, tokens: int) -> None:
    model = engine()
    least = model.mixed(rows, chunks, context, tokens, context * 8)
    assert model.mixed(rows + 1, chunks, context, tokens, context * 8) >= least
    assert model.mixed(rows, chunks + 1, context, tokens, context * 8) >= least
    assert model.mixed(rows, chunks, context + 1, tokens, context * 8) > least
    assert model.mixed(rows, chunks, context, tokens + 1, context * 8) >= least
    assert model.mixed(rows, chunks, context, tokens, context * 8 + 1) > least


def test_decode_and_mixed_steps_without_prompts_agree() -> None:
    model = engine()
    base, each = model.decode(7)
    assert model.mixed(7, 0, 9000, 0, 0) == pytest.approx(base + 9000 * each)


def test_more_devices_are_faster_and_hold_more_but_not_in_proportion() -> None:
    one, four = engine(), engine(devices=4)
    assert one.decode(8)[0] > four.decode(8)[0] > one.decode(8)[0] / 4
    assert four.kv_tokens > 4 * one.kv_tokens, "the weights are held once"
    assert engine(devices=16).kv_tokens < 4 * four.kv_tokens, "beyond the KV heads each device holds a copy"


def test_experts_cost_what_is_active_and_read_what_is_used() -> None:
    dense, experts = engine("qwen3-32b", devices=4), engine("qwen3-30b-a3b", devices=4)
    assert experts.mixed(0, 1, 0, 8192, 0) < 0.25 * dense.mixed(0, 1, 0, 8192, 0)
    few, many = experts.decode(1)[0], experts.decode(64)[0]
    assert many > 1.5 * few, "more requests use more experts"
    assert many < dense.decode(64)[0] * 1.1


def test_weights_that_do_not_fit_are_refused_with_the_devices_that_it_takes() -> None:
    little = Constants.with_overrides({"kv_memory_fraction": 0.5})
    with pytest.raises(ValueError, match=r"66 GB of weights, and 1 H800 have 37 GB.*at least 2 devices"):
        EngineModel(shape("qwen3-32b"), hardware("H800"), 1, little)
