"""A decoder for the Llama / Qwen family that needs a third of the tensor operations of the library's modules.

A small model's step is bound by the number of operations, not by their arithmetic. Against the modules:

* the weight of a norm is folded into the matrix that follows it;
* queries, keys and values come from one matrix product, gate and up projection from another;
* queries and keys are normalised and rotated together, the rotation being one complex product (the two halves that
  it combines are interleaved in the matrix, in queries and keys alike, which changes no score);
* in the last layer, queries, output projection and MLP are computed only for the tokens that sample.

Exact up to rounding; the model runner compares it with the library's forward at start-up and falls back to the
modules if they differ. The merged matrices are copies, laid out again after each update of the weights.

Who calls it: the model runner, for float32 models on a CPU that :func:`fusable` accepts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear, rms_norm, silu
from transformers import PreTrainedModel

from rollart.data_plane.generation.attention import Piece, StepPlan, run_pieces
from rollart.data_plane.generation.decoder import Decoder
from rollart.data_plane.training.fast_forward import unsupported

LARGEST = 500_000_000
"""Parameters above which the copies would cost more memory than the operations they save are worth."""


def fusable(model: PreTrainedModel) -> bool:
    """Whether the fused decoder is worth trying."""
    small = sum(parameter.numel() for parameter in model.parameters()) <= LARGEST
    return small and model.dtype == torch.float32 and model.device.type == "cpu" and unsupported(model) is None


class FusedDecoder(Decoder):
    """See the module docstring.

    Args:
        model: One that :func:`fusable` accepts.
        max_context: Longest history.
    """

    name = "fused"

    def __init__(self, model: PreTrainedModel, max_context: int) -> None:
        # the structure has been checked, but transformers' classes have no common type for it
        self._model: Any = model
        config: Any = model.config
        heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
        self._layers = [_Layer(layer, heads, kv_heads, head_dim) for layer in self._model.model.layers]
        embedding = self._model.model.embed_tokens.weight.detach()
        with torch.inference_mode():
            cosines, sines = self._model.model.rotary_emb(embedding, torch.arange(max_context)[None])
            half = head_dim // 2
            self._rotations = torch.complex(cosines[0, :, :half].contiguous(), sines[0, :, :half].contiguous())

    def refresh(self) -> None:
        for layer in self._layers:
            layer.refresh()

    def forward(self, tokens: Tensor, positions: Tensor, plan: StepPlan, sample: Tensor | None) -> Tensor:
        hidden = self._model.model.embed_tokens.weight.index_select(0, tokens)
        rotations = self._rotations.index_select(0, positions).unsqueeze(1)
        last = len(self._layers) - 1
        for number, layer in enumerate(self._layers):
            if number < last or sample is None:
                hidden = layer.forward(hidden, rotations, plan, number, plan.pieces, None)
            else:
                hidden = layer.forward(hidden, rotations, plan, number, plan.sampled, sample)
        norm = self._model.model.norm
        normed = rms_norm(hidden, norm.weight.shape, norm.weight, norm.variance_epsilon)
        logits: Tensor = self._model.lm_head(normed)
        return logits


class _Layer:
    """One decoder layer: merged copies of its matrices, and its forward."""

    def __init__(self, layer: Any, heads: int, kv_heads: int, head_dim: int) -> None:
        self._layer = layer
        self._heads, self._kv_heads, self._head_dim = heads, kv_heads, head_dim
        self._rotated = heads + kv_heads
        self._scale: float = layer.self_attn.scaling
        self._epsilon: float = layer.input_layernorm.variance_epsilon
        self._width = layer.input_layernorm.weight.shape
        self.refresh()

    def refresh(self) -> None:
        """Lay out the present weights."""
        attention, mlp = self._layer.self_attn, self._layer.mlp
        with torch.no_grad():
            projections = (attention.q_proj, attention.k_proj, attention.v_proj)
            first, second = self._layer.input_layernorm.weight, self._layer.post_attention_layernorm.weight
            query, key, value = (projection.weight * first for projection in projections)
            self._qkv = torch.cat([self._interleave(query), self._interleave(key), value])
            self._qkv_bias = None
            if attention.q_proj.bias is not None:
                query, key, value = (projection.bias for projection in projections)
                self._qkv_bias = torch.cat([self._interleave(query), self._interleave(key), value])
            self._head_norm = None
            if hasattr(attention, "q_norm"):
                query = self._interleave(attention.q_norm.weight).expand(self._heads, -1)
                key = self._interleave(attention.k_norm.weight).expand(self._kv_heads, -1)
                self._head_norm = torch.cat([query, key])
            self._gate_up = torch.cat([mlp.gate_proj.weight * second, mlp.up_proj.weight * second])
            self._output = attention.o_proj.weight.detach().t()
            self._down = mlp.down_proj.weight.detach().t()

    def forward(
        self,
        hidden: Tensor,
        rotations: Tensor,
        plan: StepPlan,
        number: int,
        pieces: Sequence[Piece],
        select: Tensor | None,
    ) -> Tensor:
        """``[T, hidden]`` to ``[T, hidden]``, or to the rows of ``select``."""
        tokens, rotated = len(hidden), self._rotated * self._head_dim
        both = linear(rms_norm(hidden, self._width, None, self._epsilon), self._qkv, self._qkv_bias)
        query_key = both[:, :rotated].reshape(tokens, self._rotated, self._head_dim)
        if self._head_norm is not None:
            query_key = rms_norm(query_key, (self._head_dim,), None, self._epsilon).mul_(self._head_norm)
        torch.view_as_complex(query_key.view(tokens, self._rotated, -1, 2)).mul_(rotations)
        value = both[:, rotated:].view(tokens, self._kv_heads, self._head_dim)
        plan.cache.write(number, plan.write_index, query_key[:, self._heads :], value)
        query = query_key[:, : self._heads]
        if select is not None:
            query, hidden = query.index_select(0, select), hidden.index_select(0, select)
        attended = run_pieces(plan.cache, number, pieces, query, self._scale)
        hidden = torch.addmm(hidden, attended.reshape(len(query), self._heads * self._head_dim), self._output)
        gate, up = linear(rms_norm(hidden, self._width, None, self._epsilon), self._gate_up).chunk(2, -1)
        return hidden.addmm_(silu(gate).mul_(up), self._down)

    def _interleave(self, weight: Tensor) -> Tensor:
        """Bring the two halves that a rotation combines side by side, in every head."""
        halves = weight.view(-1, 2, self._head_dim // 2, *weight.shape[1:])
        return halves.transpose(1, 2).reshape(weight.shape)
