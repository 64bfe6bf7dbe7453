"""How one flattened forward over many sessions attends: each token to its own session's history.

A step's tokens, single decode tokens of many sessions and prefill chunks, go through the model as one
sequence ``[1, T]``. This module is the attention function that transformers' attention interface calls
in every layer: it writes the new keys and values to the sessions' slots, then computes attention piece by piece:

* ``Rows``: one token for each of several sessions. Sessions in neighbouring slots are one kernel call on
  a view of the cache; scattered ones are calls of their own, or one call on a gathered copy, whichever
  the cost model finds cheaper.
* ``Chunk``: several consecutive tokens of one session, causal over its history.
* ``Tokens``: the same tokens, but each computed as a row of fixed width of its own, so that its bits depend on
  its history alone (deterministic mode).

The plan (views, masks, indices) is
made once a step, not once a layer. Invariant: within one call, a token's keys are written before any
token attends, and a token attends to positions up to its own only.

Who calls it: the model runner builds the plan; the model's attention modules call :func:`attend`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention as sdpa
from transformers import AttentionInterface

from rollart.data_plane.generation.kv_cache import KVCache

IMPLEMENTATION = "rollart"
"""Name under which the attention function is registered with transformers."""

CALL_SECONDS = 15e-6
"""Overhead of one more attention call (measured: 12-20 us on a CPU; a kernel launch or two on a GPU)."""

COPY_BYTES_PER_SECOND = {"cpu": 4e9, "cuda": 1e12}
"""How fast a gather copies, read and write together (measured on a CPU core; below an H20's bandwidth)."""


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
    """One token for each of the sessions in ``slots``, wherever they lie."""

    slots: torch.Tensor
    width: int
    mask: torch.Tensor | None

    def attend(self, cache: KVCache, layer: int, query: torch.Tensor, scale: float | None) -> torch.Tensor:
        keys = cache.keys[layer][:, :, : self.width].index_select(0, self.slots)
        values = cache.values[layer][:, :, : self.width].index_select(0, self.slots)
        return _row_attention(query, keys, values, self.mask, scale)


@dataclass(frozen=True, slots=True)
class Chunk(Piece):
    """Consecutive tokens of one session; the last one's history has ``width`` tokens."""

    slot: int
    width: int
    mask: torch.Tensor

    def attend(self, cache: KVCache, layer: int, query: torch.Tensor, scale: float | None) -> torch.Tensor:
        keys = cache.keys[layer][self.slot : self.slot + 1, :, : self.width]
        values = cache.values[layer][self.slot : self.slot + 1, :, : self.width]
        heads = query.transpose(0, 1).unsqueeze(0)
        out = sdpa(heads, keys, values, attn_mask=self.mask, scale=scale, enable_gqa=True)
        return out[0].transpose(0, 1)


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
    folded = query.view(rows, kv_heads, heads // kv_heads, dim)
    return sdpa(folded, keys, values, attn_mask=mask, scale=scale).reshape(rows, heads, dim)


class StepPlan(NamedTuple):
    """What the attention function needs in one forward."""

    cache: KVCache
    write_index: torch.Tensor
    pieces: Sequence[Piece]
    tokens: int
    """Length of the flattened sequence; tokens that no piece covers (padding) attend to nothing."""


class Planner:
    """Makes the pieces of a step. One for each cache.

    Args:
        cache: Where the keys and values are.
        call_seconds: Overhead of one more attention call.
        copy_seconds: To gather one cached token's key and value; ``None`` takes the device's bandwidth.
    """

    def __init__(self, cache: KVCache, call_seconds: float = CALL_SECONDS, copy_seconds: float | None = None) -> None:
        reference = cache.keys[0]
        self._device = reference.device
        self._dtype = reference.dtype
        self._steps = torch.arange(cache.max_length, device=self._device)
        if copy_seconds is None:
            read_and_written = 2 * 2 * cache.kv_heads * cache.head_dim * self._dtype.itemsize
            copy_seconds = read_and_written / COPY_BYTES_PER_SECOND.get(
                self._device.type, COPY_BYTES_PER_SECOND["cuda"]
            )
        self._call_seconds = call_seconds
        self._copy_seconds = copy_seconds

    def rows(self, first: int, slots: np.ndarray, lengths: np.ndarray) -> list[Piece]:
        """Pieces for single tokens of different sessions.

        Args:
            first: Index of the first of these tokens in the flattened sequence.
            slots: ``int64[n]``, rising.
            lengths: ``int64[n]``, tokens in each history, the new one included.
        """
        width = int(lengths.max())
        # reading an idle slot in a gap costs about a third of copying it
        gap = int(3 * self._call_seconds / (self._copy_seconds * width))
        cuts = np.flatnonzero(np.diff(slots) - 1 > gap) + 1
        if len(cuts) * self._call_seconds > self._copy_seconds * width * len(slots):
            index = torch.from_numpy(slots).to(self._device)
            return [GatheredRows(first, len(slots), index, width, self._row_mask(lengths, width))]
        bounds = [0, *cuts.tolist(), len(slots)]
        return [self._segment(first + start, slots[start:end], lengths[start:end]) for start, end in pairwise(bounds)]

    def _segment(self, first: int, slots: np.ndarray, lengths: np.ndarray) -> Rows:
        low, high = int(slots[0]), int(slots[-1]) + 1
        width = int(lengths.max())
        if high - low == len(slots):
            return Rows(first, len(slots), low, high, width, self._row_mask(lengths, width), None)
        offsets = slots - low
        spread = np.ones(high - low, np.int64)  # an idle row attends to one token: no empty softmax
        spread[offsets] = lengths
        index = torch.from_numpy(offsets).to(self._device)
        return Rows(first, len(slots), low, high, width, self._row_mask(spread, width), index)

    def _row_mask(self, lengths: np.ndarray, width: int) -> torch.Tensor | None:
        if int(lengths.min()) == width:
            return None
        ends = torch.from_numpy(lengths).to(self._device)
        return self._additive(self._steps[:width] >= ends[:, None])[:, None, None, :]

    def chunk(self, first: int, run: TokenRun) -> Piece:
        """Piece for consecutive tokens of one session."""
        width = run.start + run.size
        hidden = self._steps[:width] > self._steps[run.start : width, None]
        return Chunk(first, run.size, run.slot, width, self._additive(hidden))

    def tokens(self, first: int, run: TokenRun) -> Piece:
        """Piece for consecutive tokens of one session, each on its own."""
        hidden = self._steps > self._steps[run.start : run.start + run.size, None]
        return Tokens(first, run.size, run.slot, self._additive(hidden)[:, None, None, :])

    def _additive(self, hidden: torch.Tensor) -> torch.Tensor:
        mask = torch.zeros(hidden.shape, dtype=self._dtype, device=self._device)
        return mask.masked_fill_(hidden, float("-inf"))


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
    cache, index, pieces, tokens = rollart_plan
    if sliding_window is not None and sliding_window < cache.max_length:
        raise UnsupportedAttention(
            f"the model attends to a window of {sliding_window} tokens, less than the engine's context of "
            f"{cache.max_length}: lower the context to at most {sliding_window}"
        )
    if kwargs.get("softcap") is not None or kwargs.get("s_aux") is not None:
        raise UnsupportedAttention("the model's attention has a soft cap or sinks, which the torch engine lacks")
    layer = int(module.layer_idx)  # type: ignore[arg-type]
    cache.write(layer, index, key, value)
    batch, heads, length, dim = query.shape
    rows = query.transpose(1, 2).reshape(batch * length, heads, dim)
    if len(pieces) == 1 and pieces[0].count == tokens:
        return pieces[0].attend(cache, layer, rows, scaling).reshape(batch, length, heads, dim), None
    out = torch.zeros_like(rows)
    for piece in pieces:
        part = slice(piece.first, piece.first + piece.count)
        out[part] = piece.attend(cache, layer, rows[part], scaling)
    return out.view(batch, length, heads, dim), None


AttentionInterface.register(IMPLEMENTATION, attend)
