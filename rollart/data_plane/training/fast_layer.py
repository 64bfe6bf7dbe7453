"""One decoder layer of the Llama / Qwen family, forward and backward written out in matrix products.

Working copies of the weights are laid out for it, and gradients are brought back to the originals:

* the weight of a norm is folded into the matrix that follows, so that normalising is one scaling;
* keys and values share a matrix, alternating by head;
* the two halves that rotary positions combine are interleaved, so that rotating is one complex product;
* the softmax scale is folded into the queries.

A layer may be asked for some nodes only: then queries, output projection and MLP are computed for these
alone. In the last layer that spares all but the few positions whose next token was generated. And nodes
may share a row of the input: in the first layer, before positions enter, equal tokens do.

Everything is exact up to rounding; nothing is approximated. Who calls it:
:mod:`rollart.data_plane.training.fast_forward`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rollart.data_plane.training.tree_attention import Saved, TreeAttention


@dataclass(slots=True)
class Kept:
    """What the backward pass of one layer needs."""

    normed: Tensor
    scale: Tensor
    query: tuple[Tensor, Tensor] | None
    key: tuple[Tensor, Tensor] | None
    attention: Saved
    attended: Tensor
    normed_mlp: Tensor
    scale_mlp: Tensor
    gate: Tensor
    sigmoid: Tensor
    up: Tensor
    product: Tensor


@dataclass(frozen=True, slots=True)
class Route:
    """How a layer is run on a micro-batch of ``n`` nodes.

    Attributes:
        attention: Between its nodes.
        rotations: Complex ``[n, 1, head_dim / 2]``.
        query_rotations: Of the nodes whose output is wanted.
        select: These nodes, or ``None`` for all.
        source: ``None`` if the layer's input has a row for each node, else the row of each node; then all outputs
            are wanted. The first layer's input has one row for each different token.
    """

    attention: TreeAttention
    rotations: Tensor
    query_rotations: Tensor
    select: Tensor | None = None
    source: Tensor | None = None


class FastLayer:
    """Working copies of one layer's weights, and their gradients.

    Args:
        layer: The Hugging Face layer; its parameters are read by ``refresh`` and receive gradients in ``collect``.
        heads, kv_heads, head_dim: Shape of the attention.
    """

    def __init__(self, layer: Any, heads: int, kv_heads: int, head_dim: int) -> None:
        self._layer = layer
        self._heads, self._kv_heads, self._head_dim = heads, kv_heads, head_dim
        half = torch.arange(head_dim // 2)
        self._interleave = torch.stack([half, half + head_dim // 2], 1).reshape(-1)
        self._softmax_scale = head_dim**-0.5
        self._epsilon = float(self._layer.input_layernorm.variance_epsilon)
        self._norms_heads = hasattr(self._layer.self_attn, "q_norm")
        self.refresh()

    def refresh(self) -> None:
        """Lay out the present weights and forget gradients."""
        attention, mlp = self._layer.self_attn, self._layer.mlp
        first = self._layer.input_layernorm.weight.detach()
        second = self._layer.post_attention_layernorm.weight.detach()
        with torch.no_grad():
            self._query = self._rotary_rows(attention.q_proj.weight) * first
            key, value = self._rotary_rows(attention.k_proj.weight), attention.v_proj.weight
            self._key_value = self._alternate(key, value) * first
            self._output = attention.o_proj.weight.detach()
            self._gate, self._up = mlp.gate_proj.weight * second, mlp.up_proj.weight * second
            self._down = mlp.down_proj.weight.detach()
            self._query_bias = self._key_value_bias = None
            if attention.q_proj.bias is not None:
                self._query_bias = self._rotary_rows(attention.q_proj.bias)
                self._key_value_bias = self._alternate(self._rotary_rows(attention.k_proj.bias), attention.v_proj.bias)
            if self._norms_heads:
                self._query_norm = attention.q_norm.weight[self._interleave] * self._softmax_scale
                self._key_norm = attention.k_norm.weight[self._interleave]
            else:
                self._query *= self._softmax_scale
                if self._query_bias is not None:
                    self._query_bias *= self._softmax_scale
        self._gradients: dict[str, Tensor] = {}

    def forward(self, hidden: Tensor, route: Route) -> tuple[Tensor, Kept]:
        """``[n, hidden]`` (see ``Route.source``) to ``[n, hidden]`` or to the rows of ``select`` in that order."""
        normed, scale = _normalise(hidden, self._epsilon)
        chosen = normed if route.select is None else normed.index_select(0, route.select)
        queries = _linear(chosen, self._query, self._query_bias).view(-1, self._heads, self._head_dim)
        keys_values = _linear(normed, self._key_value, self._key_value_bias)
        keys = self._keys_of(keys_values)
        query = key = None
        if self._norms_heads:
            query = _normalise(queries, self._epsilon)
            key = _normalise(keys, self._epsilon)
            queries = query[0] * self._query_norm
            torch.mul(key[0], self._key_norm, out=keys)
        if route.source is not None:
            queries, keys_values = queries.index_select(0, route.source), keys_values.index_select(0, route.source)
        _rotate(queries, route.query_rotations)
        _rotate(self._keys_of(keys_values), route.rotations)
        attended, saved = route.attention.forward(queries.view(len(queries), -1), keys_values)
        which = route.select if route.source is None else route.source
        residual = hidden if which is None else hidden.index_select(0, which)
        middle = torch.addmm(residual, attended, self._output.t())
        normed_mlp, scale_mlp = _normalise(middle, self._epsilon)
        gate, up = normed_mlp @ self._gate.t(), normed_mlp @ self._up.t()
        sigmoid = torch.sigmoid(gate)
        product = (gate * sigmoid).mul_(up)
        result = middle.addmm_(product, self._down.t())
        kept = Kept(normed, scale, query, key, saved, attended, normed_mlp, scale_mlp, gate, sigmoid, up, product)
        return result, kept

    def backward(self, gradient: Tensor, kept: Kept, route: Route) -> Tensor:
        """Gradient of the layer's input from that of its output (which is overwritten)."""
        middle = self._mlp_backward(gradient, kept)
        self._add("output", middle, kept.attended)
        attended = middle.new_zeros(len(middle) + 1, self._output.shape[1])
        torch.mm(middle, self._output, out=attended[:-1])
        queries, context = route.attention.backward(attended, kept.attention)
        keys_values = route.attention.add_to_nodes(context, len(route.rotations))
        queries = queries.view(-1, self._heads, self._head_dim)
        _rotate(queries, route.query_rotations.conj())
        _rotate(self._keys_of(keys_values), route.rotations.conj())
        if route.source is not None:
            inputs = len(kept.normed)
            queries, keys_values, middle = (
                part.new_zeros(inputs, *part.shape[1:]).index_add_(0, route.source, part)
                for part in (queries, keys_values, middle)
            )
        return self._inputs_backward(queries, keys_values, middle, kept, route.select)

    def _inputs_backward(
        self, queries: Tensor, keys_values: Tensor, residual: Tensor, kept: Kept, select: Tensor | None
    ) -> Tensor:
        """From the gradients of unrotated queries, keys and values, and of the residual, to that of the input."""
        keys = self._keys_of(keys_values)
        if kept.query is not None and kept.key is not None:
            self._head_norm_backward("query_norm", queries, kept.query, self._query_norm)
            self._head_norm_backward("key_norm", keys, kept.key, self._key_norm)
        queries = queries.view(len(queries), -1)
        chosen = kept.normed if select is None else kept.normed.index_select(0, select)
        self._add("query", queries, chosen, bias=self._query_bias is not None)
        self._add("key_value", keys_values, kept.normed, bias=self._key_value_bias is not None)
        normed = keys_values @ self._key_value
        if select is None:
            normed.addmm_(queries, self._query)
        else:
            normed.index_add_(0, select, queries @ self._query)
            residual = torch.zeros_like(normed).index_copy_(0, select, residual)
        return _normalise_backward(residual, normed, kept.normed, kept.scale)

    def collect(self) -> None:
        """Add the gradients to those of the layer's parameters, and forget them."""
        if not self._gradients:
            return
        layer, attention, mlp = self._layer, self._layer.self_attn, self._layer.mlp
        found, self._gradients = self._gradients, {}
        query_scale = 1.0 if self._norms_heads else self._softmax_scale
        with torch.no_grad():
            key, value = self._separate(found["key_value"])
            matrices = (
                (attention.q_proj, found["query"] * query_scale, True),
                (attention.k_proj, key, True),
                (attention.v_proj, value, False),
            )
            _unfold(layer.input_layernorm, [(p, self._original_rows(g) if r else g) for p, g, r in matrices])
            _unfold(layer.post_attention_layernorm, [(mlp.gate_proj, found["gate"]), (mlp.up_proj, found["up"])])
            attention.o_proj.weight.grad += found["output"]
            mlp.down_proj.weight.grad += found["down"]
            if self._query_bias is not None:
                key, value = self._separate(found["key_value.bias"])
                attention.q_proj.bias.grad += self._original_rows(found["query.bias"] * query_scale)
                attention.k_proj.bias.grad += self._original_rows(key)
                attention.v_proj.bias.grad += value
            if self._norms_heads:
                attention.q_norm.weight.grad[self._interleave] += found["query_norm"] * self._softmax_scale
                attention.k_norm.weight.grad[self._interleave] += found["key_norm"]

    def _mlp_backward(self, gradient: Tensor, kept: Kept) -> Tensor:
        self._add("down", gradient, kept.product)
        product = gradient @ self._down
        through_up = product * kept.up
        silu = torch.mul(kept.gate, kept.sigmoid, out=kept.product)
        up = product.mul_(silu)
        slope = silu.lerp_(silu.new_ones(()).expand_as(silu), kept.sigmoid)  # silu' = silu + sigmoid * (1 - silu)
        gate = through_up.mul_(slope)
        self._add("gate", gate, kept.normed_mlp)
        self._add("up", up, kept.normed_mlp)
        normed = torch.addmm(gate @ self._gate, up, self._up)
        return _normalise_backward(gradient, normed, kept.normed_mlp, kept.scale_mlp)

    def _head_norm_backward(self, name: str, gradient: Tensor, forward: tuple[Tensor, Tensor], weight: Tensor) -> None:
        """In place, through ``normalised * weight``."""
        normed, scale = forward
        self._sum(name, (gradient * normed).sum((0, 1)))
        gradient *= weight
        along = torch.linalg.vecdot(gradient, normed).unsqueeze(-1).div_(-normed.shape[-1])
        gradient.addcmul_(normed, along).mul_(scale)

    def _add(self, name: str, gradient: Tensor, inputs: Tensor, *, bias: bool = False) -> None:
        total = self._gradients.get(name)
        if total is None:
            self._gradients[name] = gradient.t() @ inputs
        else:
            total.addmm_(gradient.t(), inputs)
        if bias:
            self._sum(f"{name}.bias", gradient.sum(0))

    def _sum(self, name: str, gradient: Tensor) -> None:
        total = self._gradients.get(name)
        self._gradients[name] = gradient if total is None else total.add_(gradient)

    def _keys_of(self, keys_values: Tensor) -> Tensor:
        return keys_values.view(-1, self._kv_heads, 2, self._head_dim)[:, :, 0]

    def _rotary_rows(self, weight: Tensor) -> Tensor:
        return weight.view(-1, self._head_dim, *weight.shape[1:])[:, self._interleave].reshape(weight.shape)

    def _original_rows(self, gradient: Tensor) -> Tensor:
        by_head = gradient.view(-1, self._head_dim, *gradient.shape[1:])
        return torch.empty_like(by_head).index_copy_(1, self._interleave, by_head).view(gradient.shape)

    def _alternate(self, key: Tensor, value: Tensor) -> Tensor:
        shape = (self._kv_heads, self._head_dim, *key.shape[1:])
        return torch.stack([key.view(shape), value.view(shape)], 1).view(-1, *key.shape[1:])

    def _separate(self, gradient: Tensor) -> tuple[Tensor, Tensor]:
        both = gradient.view(self._kv_heads, 2, self._head_dim, *gradient.shape[1:])
        shape = (self._kv_heads * self._head_dim, *gradient.shape[1:])
        return both[:, 0].reshape(shape), both[:, 1].reshape(shape)


def _normalise(values: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    """RMS norm over the last dimension without a weight, and the factor that it multiplied by."""
    width = values.shape[-1]
    scale = torch.linalg.vector_norm(values, dim=-1, keepdim=True).square_().div_(width).add_(epsilon).rsqrt_()
    return values * scale, scale


def _normalise_backward(onto: Tensor, gradient: Tensor, normed: Tensor, scale: Tensor) -> Tensor:
    """``onto`` plus the gradient through :func:`_normalise`, in place."""
    along = torch.linalg.vecdot(gradient, normed).unsqueeze(-1).mul_(scale).div_(-normed.shape[-1])
    return onto.addcmul_(gradient, scale).addcmul_(normed, along)


def _rotate(values: Tensor, rotation: Tensor) -> None:
    """Rotate interleaved pairs in place; ``values`` is ``[n, heads, head_dim]``."""
    torch.view_as_complex(values.view(*values.shape[:-1], -1, 2)).mul_(rotation)


def _linear(inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return torch.nn.functional.linear(inputs, weight, bias)


def _unfold(norm: Any, followers: list[tuple[Any, Tensor]]) -> None:
    """Gradients of a norm's weight w and of matrices M, from those of the folded ``M * w``."""
    for projection, gradient in followers:
        projection.weight.grad += gradient * norm.weight
        norm.weight.grad += (gradient * projection.weight).sum(0)
