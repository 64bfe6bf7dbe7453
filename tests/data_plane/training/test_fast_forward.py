"""The packed forward pass and its own backward pass against the library's modules and autograd."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    LlamaConfig,
    MistralConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
)

from rollart.config.config import Config
from rollart.data_plane.training import fast_forward, tree_attention
from rollart.data_plane.training.batching import MicroBatch, micro_batches, rows_of, totals_of
from rollart.data_plane.training.fast_forward import FastForward, agrees, unsupported
from rollart.data_plane.training.forward import PaddedForward, PolicyForward
from rollart.types import TrainBatch

SHAPE: dict[str, Any] = {
    "vocab_size": 29,
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "initializer_range": 0.3,
    "pad_token_id": 0,
}
MODELS = {
    "qwen3": Qwen3Config(**SHAPE, head_dim=8, tie_word_embeddings=True),
    "qwen2, biased": Qwen2Config(**SHAPE, tie_word_embeddings=False),
    "llama": LlamaConfig(**SHAPE, tie_word_embeddings=False),
    "llama, multi-query": LlamaConfig(**SHAPE | {"num_key_value_heads": 1}, tie_word_embeddings=True),
    "one layer": Qwen3Config(**SHAPE | {"num_hidden_layers": 1}, head_dim=8, tie_word_embeddings=True),
    "mistral": MistralConfig(**SHAPE, sliding_window=None),
}


def build(config: Any) -> PreTrainedModel:
    torch.manual_seed(3)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")
    with torch.no_grad():
        for parameter in model.parameters():  # norms and biases too, which start at 1 and 0
            parameter += 0.2 * torch.randn_like(parameter)
            parameter.grad = torch.zeros_like(parameter)
    return model


def weighted_sum(batch: MicroBatch) -> Callable[[Tensor, Tensor, slice], Tensor]:
    """An arbitrary smooth loss that tells entries apart and uses the entropies."""

    def loss(values: Tensor, entropies: Tensor, part: slice) -> Tensor:
        weights = torch.from_numpy(batch.behaviour)[part]
        return (weights * values).sum() + 0.3 * (weights.square() * entropies).sum()

    return loss


def gradients(
    model: PreTrainedModel, forward: PolicyForward, batch: TrainBatch, config: Config
) -> tuple[float, dict[str, Tensor]]:
    rows = rows_of(batch, config.domains, config.training)
    model.zero_grad(set_to_none=False)
    forward.refresh()
    total = 0.0
    packed = micro_batches(rows, totals_of(rows), config.training, share_prefixes=forward.share_prefixes)
    for micro_batch in packed:
        loss = weighted_sum(micro_batch)
        forward.accumulate(micro_batch, loss, entropy_gradient=True)
        values = forward.log_probabilities(micro_batch)
        total += float(loss(values, torch.zeros_like(values), slice(None)))
    forward.collect()
    return total, {
        name: parameter.grad.clone() for name, parameter in model.named_parameters() if parameter.grad is not None
    }


@pytest.mark.parametrize("budget", [40, 8192])
@pytest.mark.parametrize("name", MODELS)
def test_log_probabilities_and_gradients_are_the_librarys(
    name: str, budget: int, make_batch: Callable[..., TrainBatch], make_config: Callable[..., Config]
) -> None:
    model = build(MODELS[name])
    assert unsupported(model) is None
    config = make_config(micro_batch_tokens=budget)
    batch = make_batch(5, groups=4, size=5)
    expected, reference = gradients(model, PaddedForward(model), batch, config)
    value, found = gradients(model, FastForward(model), batch, config)
    assert value == pytest.approx(expected, rel=1e-5)
    assert found.keys() == reference.keys()
    for parameter, gradient in reference.items():
        scale = gradient.abs().max()
        assert (found[parameter] - gradient).abs().max() <= 2e-5 * scale + 1e-7, parameter
        assert scale > 0


def test_long_rows_are_cut_into_blocks_and_may_compute_attention_twice(
    make_batch: Callable[..., TrainBatch], make_config: Callable[..., Config], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = build(MODELS["qwen3"])
    config = make_config()
    batch = make_batch(6, groups=3, size=6)
    _, expected = gradients(model, PaddedForward(model), batch, config)
    monkeypatch.setattr(tree_attention, "_CALLS", 1)
    monkeypatch.setattr(tree_attention, "_SMALLEST_BLOCK", 2)
    for kept_bytes in (1 << 28, 0):
        monkeypatch.setattr(tree_attention, "_KEPT_BYTES", kept_bytes)
        _, found = gradients(model, FastForward(model), batch, config)
        for name, gradient in expected.items():
            assert torch.allclose(found[name], gradient, atol=2e-5 * float(gradient.abs().max())), name


def test_many_predictions_take_their_logits_in_turns(
    make_batch: Callable[..., TrainBatch], make_config: Callable[..., Config], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = build(MODELS["llama"])
    config, batch = make_config(), make_batch(6)
    value, expected = gradients(model, FastForward(model), batch, config)
    monkeypatch.setattr(fast_forward, "_LOGIT_CHUNK", 3 * 29)
    other, found = gradients(model, FastForward(model), batch, config)
    assert other == pytest.approx(value, rel=1e-5)
    assert all(torch.allclose(found[name], gradient, atol=1e-4) for name, gradient in expected.items())


def test_a_model_that_computes_something_else_is_noticed() -> None:
    model = build(MODELS["qwen3"])
    fast = FastForward(model)
    assert agrees(fast, model)
    with torch.no_grad():
        model.model.layers[1].self_attn.v_proj.weight.mul_(1.5)
    assert not agrees(fast, model)
    fast.refresh()
    assert agrees(fast, model)


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (GPT2Config(vocab_size=29, n_embd=16, n_layer=1, n_head=2), "architecture gpt2 is none of"),
        (MistralConfig(**SHAPE, sliding_window=16), "sliding attention windows"),
        (Qwen3Config(**SHAPE, use_sliding_window=True, sliding_window=16, max_window_layers=1), "sliding"),
        (LlamaConfig(**SHAPE, rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}), "dynamic"),
        (LlamaConfig(**SHAPE, hidden_act="gelu"), "its activation is gelu"),
        (LlamaConfig(**SHAPE, mlp_bias=True), "projections have biases"),
    ],
)
def test_what_it_cannot_do_is_refused(config: Any, reason: str) -> None:
    refused = unsupported(AutoModelForCausalLM.from_config(config))
    assert refused is not None
    assert reason in refused
