"""Model shapes against published parameter counts and sizes."""

from __future__ import annotations

import pytest

from rollart.simulation.shapes import SHAPES, shape


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("qwen3-8b", 8_190_735_360),
        ("qwen3-14b", 14_768_307_200),
        ("qwen3-32b", 32_762_123_264),
        ("qwen3-30b-a3b", 30_532_122_624),
        ("qwen3-480b-a35b", 480_154_875_392),
        ("qwen2.5-7b", 7_615_616_512),
    ],
)
def test_parameters_are_those_of_the_published_weights(name: str, parameters: int) -> None:
    assert shape(name).parameters == parameters


@pytest.mark.parametrize(("name", "gibibytes"), [("qwen3-8b", 15.26), ("qwen3-14b", 27.51), ("qwen3-32b", 61.02)])
def test_sizes_are_those_of_the_papers_table_3(name: str, gibibytes: float) -> None:
    assert shape(name).weight_bytes / 2**30 == pytest.approx(gibibytes, rel=0.001)


def test_active_parameters_are_as_the_models_names_say() -> None:
    assert shape("qwen3-30b-a3b").active_parameters == pytest.approx(3.3e9, rel=0.02)
    assert shape("qwen3-480b-a35b").active_parameters == pytest.approx(35e9, rel=0.02)
    assert all(each.active_parameters == each.parameters for each in SHAPES.values() if not each.experts)


def test_a_tokens_keys_and_values() -> None:
    # 36 layers, 8 heads of 128 elements of 2 bytes, keys and values
    assert shape("qwen3-8b").kv_bytes_per_token == 36 * 8 * 128 * 2 * 2


def test_operations_are_two_for_each_weight_and_grow_with_the_context() -> None:
    model = shape("qwen3-8b")
    inside = model.parameters - model.embedding_parameters
    assert model.flops_per_token() == 2 * inside
    # queries times keys and scores times values: one multiplication and one addition for each element
    assert model.flops_per_token(1000) - model.flops_per_token() == 36 * 32 * 128 * 2 * 2 * 1000


def test_a_dense_step_reads_all_weights_but_the_embedding_table() -> None:
    model = shape("qwen3-14b")
    expected = model.weight_bytes - 2 * model.embedding_parameters
    assert model.bytes_read(1) == model.bytes_read(500) == expected


def test_a_step_reads_the_experts_that_its_tokens_choose() -> None:
    model = shape("qwen3-30b-a3b")
    table = 2 * model.embedding_parameters
    assert model.bytes_read(1) == pytest.approx(2 * model.active_parameters - table)
    one, few, many = (model.bytes_read(tokens) for tokens in (1, 8, 1000))
    assert one < few < 8 * one
    assert many == pytest.approx(model.weight_bytes - table)


def test_an_unknown_shape_is_refused_with_the_nearest() -> None:
    with pytest.raises(ValueError, match=r"'qwen3-8': did you mean 'qwen3-8b'\?"):
        shape("qwen3-8")
    with pytest.raises(ValueError, match="shapes: qwen3-8b, "):
        shape("zzzz")
