"""How one flattened forward over many sessions attends: each token to its own session's history.

A step's tokens, single decode tokens of many sessions and prefill chunks, go through the model as one
sequence. In every layer the new keys and values are written to the sessions' slots, then attention is computed
piece by piece, each piece one kernel call:

* ``Rows``: one token for each of the sessions in neighbouring slots, on a view of the cache;
* ``GatheredRows``: one token for each of several sessions wherever they lie, on a copy;
* ``Chunks``: several consecutive tokens of each of several sessions, causal over its history, on a copy, padded;
* ``Tokens``: consecutive tokens of one session, each computed as a row of fixed width of its own, so that its
  bits depend on its history alone (deterministic mode).

:mod:`~rollart.data_plane.generation.planning` cuts a step into pieces, once a step and not once a layer.
Invariant: within one call, a token's keys are written before any token attends, and a token attends to
positions up to its own only.

Who calls it: decoders, the generic one through transformers' attention interface (:func:`attend`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch.nn.functional import scaled_dot_product_attention as sdpa
from transformers import AttentionInterface

from rollart.data_plane.generation.kv_cache import KVCache

IMPLEMENTATION = "rollart"
"""Name under which the attention function is registered with transformers."""


class UnsupportedAttention(RuntimeError):
    """The model's attention does something that the engine's does not."""


class TokenRun(NamedTuple):
    """``size`` consecutive tokens of one session, the first one at position ``start``."""

    slot: int
    start: int
    size: int


@dataclass(frozen=True, slots=True)
class Piece(ABC):
    """A part of the flattened tokens whose attention is one kernel call.

    Attributes:
        first, count: Which tokens.
    """

    first: int
    count: int

    @abstractmethod
    def attend(self, cache: KVCache, layer: int, query: torch.Tensor, scale: float | None) -> torch.Tensor:
        """``query`` is ``[count, heads, head_dim]``; the result has the same shape."""


@dataclass(frozen=True, slots=True)
class Rows(Piece):
    """One token for each of the sessions in slots ``[low, high)``, all of them or those at ``offsets``."""

    low: int
    high: int
    width: int
    mask: torch.Tensor | None
    offsets: torch.Tensor | None

    def attend(self, cache: KVCache, layer: int, query: torch.Tensor, scale: float | None) -> torch.Tensor:
        keys = cache.keys[layer][self.low : self.high, :, : self.width]
        values = cache.values[layer][self.low : self.high, :, : self.width]
        if self.offsets is None:
            return _row_attention(query, keys, values, self.mask, scale)
        spread = query.new_zeros((self.high - self.low, *query.shape[1:]))
        spread[self.offsets] = query
        return _row_attention(spread, keys, values, self.mask, scale)[self.offsets]


@dataclass(frozen=True, slots=True)
class GatheredRows(Piece):
    """One token for each of several sessions; ``heads`` is :meth:`KVCache.gather`'s index of their slots."""

    heads: torch.Tensor
    width: int
    mask: torch.Tensor | None

    def attend(self, cache: KVCache, layer: int, query: torch.Tensor, scale: float | None) -> torch.Tensor:
        keys, values = cache.gather(layer, self.heads, self.width)
        return _row_attention(query, keys, values, self.mask, scale)


@dataclass(frozen=True, slots=True)
class Chunks(Piece):
    """Consecutive tokens of each of several sessions, padded to the longest.

    Attributes:
        heads: :meth:`KVCache.gather`'s index of their slots.
        width: Longest history.
        padded: ``int64[sessions * longest]``, which of the tokens stands at each place.
        places: ``int64[count]``, at which place each token stands; ``None`` if nothing is padded.
        mask: ``[sessions, 1, longest, width]``.
    """

    heads: torch.Tensor
    width: int
    padded: torch.Tensor
    places: torch.Tensor | None
    mask: torch.Tensor

    def attend(self, cache: KVCache, layer: int, query: torch.Tensor, scale: float | None) -> torch.Tensor:
        keys, values = cache.gather(layer, self.heads, self.width)
        sessions, _, longest, _ = self.mask.shape
        _, heads, dim = query.shape
        if self.places is not None:
            query = query.index_select(0, self.padded)
        by_session = query.reshape(sessions, longest, heads, dim).transpose(1, 2)
        out = sdpa(by_session, keys, values, attn_mask=self.mask, scale=scale, enable_gqa=True)
        flat = out.transpose(1, 2).reshape(sessions * longest, heads, dim)
        return flat if self.places is None else flat.index_select(0, self.places)


@dataclass(frozen=True, slots=True)
class Tokens(Piece):
    """Consecutive tokens of one session as independent rows over the whole slot."""

    slot: int
    mask: torch.Tensor

    def attend(self, cache: KVCache, layer: int, query: torch.Tensor, scale: float | None) -> torch.Tensor:
        keys = cache.keys[layer][self.slot].expand(self.count, -1, -1, -1)
        values = cache.values[layer][self.slot].expand(self.count, -1, -1, -1)
        return _row_attention(query, keys, values, self.mask, scale)


def _row_attention(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor | None, scale: float | None
) -> torch.Tensor:
    """One query token a row. ``query``: ``[n, heads, d]``; keys and values: ``[n, kv_heads, width, d]``."""
    rows, heads, dim = query.shape
    kv_heads = keys.shape[1]
    # the query heads that share a key head are as good as query positions, since none masks another
    folded = query.reshape(rows, kv_heads, heads // kv_heads, dim)
    return sdpa(folded, keys, values, attn_mask=mask, scale=scale).reshape(rows, heads, dim)


class StepPlan(NamedTuple):
    """What attention needs in one forward.

    Attributes:
        cache: Where keys and values are.
        write_index: Where those of the new tokens go.
        pieces: The attention of all tokens; tokens that no piece covers (padding) attend to nothing.
        sampled: The attention of the sampled tokens alone, in their order.
    """

    cache: KVCache
    write_index: torch.Tensor
    pieces: Sequence[Piece]
    sampled: Sequence[Piece]


def run_pieces(
    cache: KVCache, layer: int, pieces: Sequence[Piece], query: torch.Tensor, scale: float | None
) -> torch.Tensor:
    """Attention of tokens ``[n, heads, head_dim]`` that the pieces cover, the others giving zeros."""
    if len(pieces) == 1 and pieces[0].count == len(query):
        return pieces[0].attend(cache, layer, query, scale)
    out = torch.zeros(query.shape, dtype=query.dtype, device=query.device)
    for piece in pieces:
        part = slice(piece.first, piece.first + piece.count)
        out[part] = piece.attend(cache, layer, query[part], scale)
    return out


def attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    rollart_plan: StepPlan | None = None,
    sliding_window: int | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """The function behind :data:`IMPLEMENTATION` in transformers' attention interface.

    Args:
        module: The attention module; its ``layer_idx`` names the layer.
        query: ``[1, heads, T, head_dim]``, or ``[T, heads, 1, head_dim]`` for tokens as a batch of sequences of one.
        key, value: The same with ``kv_heads``, of the new tokens only.
        rollart_plan: The step's plan, passed through the model's keyword arguments.

    Returns:
        ``[1, T, heads, head_dim]`` or ``[T, 1, heads, head_dim]``, and no weights.

    Raises:
        UnsupportedAttention: the plan did not arrive, or the model asks for a window, a soft cap or sinks.
    """
    if rollart_plan is None:
        raise UnsupportedAttention("the model does not pass keyword arguments on to its attention")
    cache = rollart_plan.cache
    if sliding_window is not None and sliding_window < cache.max_length:
        raise UnsupportedAttention(
            f"the model attends to a window of {sliding_window} tokens, less than the engine's context of "
            f"{cache.max_length}: lower the context to at most {sliding_window}"
        )
    if kwargs.get("softcap") is not None or kwargs.get("s_aux") is not None:
        raise UnsupportedAttention("the model's attention has a soft cap or sinks, which the torch engine lacks")
    layer = int(module.layer_idx)  # type: ignore[arg-type]
    batch, heads, length, dim = query.shape
    cache.write(layer, rollart_plan.write_index, _by_token(key), _by_token(value))
    out = run_pieces(cache, layer, rollart_plan.pieces, _by_token(query), scaling)
    return out.reshape(batch, length, heads, dim), None


def _by_token(states: torch.Tensor) -> torch.Tensor:
    """``[batch, heads, length, head_dim]`` as ``[batch * length, heads, head_dim]``."""
    batch, heads, length, dim = states.shape
    return states.transpose(1, 2).reshape(batch * length, heads, dim)


AttentionInterface.register(IMPLEMENTATION, attend)
