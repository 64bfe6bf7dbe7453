"""The packed forward pass and its own backward pass against the library's modules and autograd."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, LlamaConfig, MistralConfig, PreTrainedModel, Qwen2Config, Qwen3Config

from rollart.config.config import Config
from rollart.data_plane.training.batching import MicroBatch, micro_batches, rows_of, totals_of
from rollart.data_plane.training.fast_forward import FastForward, unsupported
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
