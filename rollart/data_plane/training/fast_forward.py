"""The packed forward pass for decoders of the Llama / Qwen family, with a backward pass of its own.

What it saves against running the library's modules on padded rows, all of it exact up to rounding:

* no padding, and tokens that rows have in common are computed once (:mod:`...tree_attention`);
* in the first layer, queries, keys and values once for each different token; in the last, queries, output
  projection and MLP only where a next token was generated;
* fewer passes over memory (:mod:`...fast_layer`), no autograd bookkeeping inside the decoder.

:func:`unsupported` says whether a model has the structure; :func:`agrees` compares log-probabilities
with the library's own forward pass before the first step, so that an unknown variant of a known
architecture falls back instead of training something else.

Who calls it: :mod:`rollart.data_plane.training.torch_trainer`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from rollart.config.training import TrainingConfig
from rollart.data_plane.training.batching import MicroBatch, Row, micro_batches, totals_of
from rollart.data_plane.training.fast_layer import FastLayer, Kept, Route
from rollart.data_plane.training.forward import LossFunction, PaddedForward, PolicyForward
from rollart.data_plane.training.losses import token_log_probabilities
from rollart.data_plane.training.tree_attention import TreeAttention
from rollart.types import TrajectoryId

_ARCHITECTURES = ("llama", "mistral", "qwen2", "qwen3")
_FIXED_ROTATIONS = ("default", "linear", "llama3", "yarn")
"""Rotary variants whose frequencies do not depend on the length of the sequence."""

_LOGIT_CHUNK = 1 << 24
"""Logits computed at once; more predictions than fit are done in turns."""

_PROBE_LENGTH = 48

_TOLERANCE = 1e-3
"""Nats by which log-probabilities may differ from the library's, far above rounding in float32."""


@dataclass(slots=True)
class _Run:
    """One micro-batch on its way through the layers.

    Attributes:
        tokens: Token of each row of the first layer's input.
        routes: One for each layer.
        kept: What the layers done so far keep for the backward pass.
    """

    tokens: Tensor
    routes: list[Route]
    kept: list[Kept]


class FastForward(PolicyForward):
    """See the module docstring.

    Args:
        model: One that :func:`unsupported` has no objection to, in float32, on its device.
    """

    name = "packed"
    share_prefixes = True

    def __init__(self, model: PreTrainedModel) -> None:
        self._model: Any = model
        config: Any = model.config
        self._heads = config.num_attention_heads
        self._kv_heads = config.num_key_value_heads
        self._head_dim = _head_dim(config)
        shape = (self._heads, self._kv_heads, self._head_dim)
        self._layers = [FastLayer(layer, *shape) for layer in self._model.model.layers]

    def refresh(self) -> None:
        for layer in self._layers:
            layer.refresh()

    def collect(self) -> None:
        for layer in self._layers:
            layer.collect()

    @torch.no_grad()
    def log_probabilities(self, batch: MicroBatch) -> Tensor:
        run, predicted_by = self._prepare(batch)
        hidden = self._decode(run, keep=False)
        parts = [
            self._entries(batch, hidden, predicted_by, first, last, entropy_gradient=False)[0]
            for first, last in self._chunks(batch)
        ]
        return torch.cat(parts)

    def accumulate(self, batch: MicroBatch, loss: LossFunction, *, entropy_gradient: bool) -> None:
        run, predicted_by = self._prepare(batch)
        with torch.no_grad():
            hidden = self._decode(run, keep=True)
        hidden.requires_grad_()
        for first, last in self._chunks(batch):
            values, entropies, part = self._entries(
                batch, hidden, predicted_by, first, last, entropy_gradient=entropy_gradient
            )
            loss(values, entropies, part).backward()  # type: ignore[no-untyped-call]
        if hidden.grad is not None:
            with torch.no_grad():
                self._backward(run, hidden.grad)

    def _prepare(self, batch: MicroBatch) -> tuple[_Run, Tensor]:
        """The plan of a micro-batch, and of each prediction the row of the last hidden states."""
        device = self._model.device
        nodes, predicted_by = np.unique(batch.predictions, return_inverse=True)
        number_of = np.full(len(batch.tokens), -1)
        number_of[nodes] = np.arange(len(nodes))
        owned = [np.arange(start, len(path)) for path, start in zip(batch.paths, batch.owned_from, strict=True)]
        everywhere = [path[own] for path, own in zip(batch.paths, owned, strict=True)]
        wanted = [own[number_of[path[own]] >= 0] for path, own in zip(batch.paths, owned, strict=True)]
        numbers = [number_of[path[own]] for path, own in zip(batch.paths, wanted, strict=True)]
        shape = (self._heads, self._kv_heads, self._head_dim, device, len(self._layers))
        rotations = self._rotations(torch.from_numpy(batch.positions).to(device))
        select = torch.from_numpy(nodes).to(device)
        tokens = torch.from_numpy(batch.tokens).to(device)
        last_attention = TreeAttention(batch.paths, wanted, numbers, *shape)
        routes = [Route(last_attention, rotations, rotations.index_select(0, select), select)]
        if len(self._layers) > 1:
            attention = TreeAttention(batch.paths, owned, everywhere, *shape)
            tokens, source = torch.unique(tokens, return_inverse=True)
            first = Route(attention, rotations, rotations, source=source)
            between = Route(attention, rotations, rotations)
            routes = [first, *[between] * (len(self._layers) - 2), *routes]
        return _Run(tokens, routes, []), torch.from_numpy(predicted_by.reshape(-1)).to(device)

    def _rotations(self, positions: Tensor) -> Tensor:
        like = self._model.model.embed_tokens.weight
        cosines, sines = self._model.model.rotary_emb(like, positions[None])
        half = self._head_dim // 2
        return torch.complex(cosines[0, :, None, :half].contiguous(), sines[0, :, None, :half].contiguous())

    def _decode(self, run: _Run, *, keep: bool) -> Tensor:
        """Hidden states of the nodes that have predictions, before the final norm."""
        hidden: Tensor = self._model.model.embed_tokens.weight.detach().index_select(0, run.tokens)
        for layer, route in zip(self._layers, run.routes, strict=True):
            hidden, kept = layer.forward(hidden, route)
            if keep:
                run.kept.append(kept)
        return hidden

    def _backward(self, run: _Run, gradient: Tensor) -> None:
        for layer, route in zip(reversed(self._layers), reversed(run.routes), strict=True):
            gradient = layer.backward(gradient, run.kept.pop(), route)
        embedding = self._model.model.embed_tokens
        if embedding.padding_idx is not None:
            gradient[run.tokens == embedding.padding_idx] = 0.0  # the library never trains that input row
        embedding.weight.grad.index_add_(0, run.tokens, gradient)

    def _chunks(self, batch: MicroBatch) -> list[tuple[int, int]]:
        """Ranges of predictions whose logits fit."""
        step = max(1, _LOGIT_CHUNK // self._model.config.vocab_size)
        return [(first, first + step) for first in range(0, len(batch.predictions), step)]

    def _entries(
        self, batch: MicroBatch, hidden: Tensor, predicted_by: Tensor, first: int, last: int, *, entropy_gradient: bool
    ) -> tuple[Tensor, Tensor, slice]:
        device = hidden.device
        part = slice(*np.searchsorted(batch.entry_predictions, [first, last]).tolist())
        some = hidden.index_select(0, predicted_by[first:last])
        logits = self._model.lm_head(self._model.model.norm(some))
        temperatures = torch.from_numpy(batch.prediction_temperatures[first:last]).to(device)
        values, entropies = token_log_probabilities(
            logits / temperatures[:, None],
            torch.from_numpy(batch.entry_predictions[part] - first).to(device),
            torch.from_numpy(batch.targets[part]).to(device),
            entropy_gradient=entropy_gradient,
        )
        return values, entropies, part


def unsupported(model: PreTrainedModel) -> str | None:
    """Why :class:`FastForward` cannot run a model, or ``None``."""
    config: Any = model.config
    if config.model_type not in _ARCHITECTURES:
        return f"architecture {config.model_type} is none of {', '.join(_ARCHITECTURES)}"
    windows = set(getattr(config, "layer_types", None) or ["full_attention"]) != {"full_attention"}
    if windows or (config.model_type == "mistral" and config.sliding_window is not None):
        return "it has sliding attention windows"
    rotary = (getattr(config, "rope_parameters", None) or {}).get("rope_type", "default")
    if rotary not in _FIXED_ROTATIONS or _head_dim(config) % 2:
        return f"its rotary positions ({rotary}) depend on the length"
    if config.hidden_act != "silu":
        return f"its activation is {config.hidden_act}"
    for layer in model.model.layers:
        biased = [layer.self_attn.o_proj, layer.mlp.gate_proj, layer.mlp.up_proj, layer.mlp.down_proj]
        if any(not isinstance(part, nn.Linear) or part.bias is not None for part in biased):
            return "its projections have biases or are no plain matrices"
    return None


def agrees(fast: FastForward, model: PreTrainedModel) -> bool:
    """Whether it gives the library's log-probabilities, on a row of arbitrary tokens."""
    tokens = np.random.default_rng(0).integers(0, model.config.vocab_size, _PROBE_LENGTH + 1).astype(np.int32)
    probe = Row(
        id=TrajectoryId("probe", 0, 0, 0),
        segment=0,
        ids=tokens[:-1],
        slots=np.arange(_PROBE_LENGTH, dtype=np.int32),
        targets=tokens[1:],
        behaviour=np.zeros(_PROBE_LENGTH, np.float32),
        on_policy=np.ones(_PROBE_LENGTH, bool),
        advantage=1.0,
        entropy_bonus=0.0,
        temperature=1.0,
        trajectory_tokens=_PROBE_LENGTH,
    )
    found = [
        forward.log_probabilities(packed)
        for forward in (fast, PaddedForward(model))
        for packed in micro_batches(
            [probe], totals_of([probe]), TrainingConfig(), share_prefixes=forward.share_prefixes
        )
    ]
    return bool((found[0] - found[1]).abs().max() < _TOLERANCE)


def _head_dim(config: Any) -> int:
    return int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)
