"""Exact causal attention over a prefix tree, forward and backward, as a few batched matrix products.

The nodes of a :class:`~rollart.data_plane.training.batching.MicroBatch` hold queries, keys and values.
Each row gathers the keys and values along its path, and asks for the queries of the nodes that it owns
(or of those among them whose output is needed), so that a shared node is computed once:

* rows with about as many queries go into one *bucket* and are padded to its longest path;
* a bucket's queries are cut into *blocks* of at most :data:`BLOCK`; a block sees keys only up to its last
  query, so that about half of the score matrix is never computed;
* a padded query repeats the row's last one and its output is not read; a padded key is masked.

Why not ``scaled_dot_product_attention``: at 30 to 200 tokens a row its kernel takes twice as long, does
not skip what causality rules out, and computes shared prefixes again.

Who calls it: :mod:`rollart.data_plane.training.fast_forward`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

BLOCK = 32
"""Queries of a block: below, calls cost more than the scores they save; above, causality saves less."""

_ROW_OVERHEAD = 2048
"""Cost of one more bucket, in scores, when rows are grouped."""

_KEPT_BYTES = 1 << 28
"""Attention weights of a micro-batch beyond this (all layers) are computed again in the backward pass."""


@dataclass(frozen=True, slots=True)
class _Block:
    """Queries ``[first, last)`` of the first ``rows`` rows of a bucket, and keys ``[0, keys)``."""

    rows: int
    first: int
    last: int
    keys: int
    mask: Tensor
    """``float32[rows, 1, last - first, 1, keys]``: 0 where the query sees the key, else -inf."""


@dataclass(frozen=True, slots=True)
class _Bucket:
    """Rows padded to ``queries`` and ``keys``; ``query_start`` and ``key_start`` are offsets in the flat buffers."""

    rows: int
    queries: int
    keys: int
    query_start: int
    key_start: int
    blocks: tuple[_Block, ...]


@dataclass(slots=True)
class Saved:
    """What the backward pass of one layer needs."""

    queries: Tensor
    keys_values: Tensor
    weights: list[Tensor]


class TreeAttention:
    """The plan for one micro-batch and one set of query nodes, used by every layer.

    Args:
        paths: For each row the nodes of its tokens.
        queries: For each row the positions whose queries it asks for, rising; every query node occurs once
            over all rows, numbered in the order of ``query_numbers``.
        query_numbers: For each row the numbers of its queries in the layer's query matrix.
        heads, kv_heads, head_dim: Shape of the attention.
        device: Where to compute.
        layers: How many layers will keep their attention weights at the same time.
    """

    def __init__(
        self,
        paths: Sequence[np.ndarray],
        queries: Sequence[np.ndarray],
        query_numbers: Sequence[np.ndarray],
        heads: int,
        kv_heads: int,
        head_dim: int,
        device: torch.device,
        layers: int,
    ) -> None:
        self._kv_heads, self._share, self._head_dim = kv_heads, heads // kv_heads, head_dim
        count = sum(len(numbers) for numbers in query_numbers)
        self._query_count = count
        buckets: list[_Bucket] = []
        query_index: list[np.ndarray] = []
        key_index: list[np.ndarray] = []
        slot_of = np.empty((count, kv_heads), np.int64)
        query_start = key_start = scores = 0
        head = np.arange(kv_heads)
        for rows in _grouped(paths, queries):
            width = max(len(queries[row]) for row in rows)
            length = max(int(queries[row][-1]) + 1 for row in rows)
            numbers = np.stack([_filled(query_numbers[row], width) for row in rows])
            positions = np.stack([_filled(queries[row], width) for row in rows])
            nodes = np.stack([_filled(paths[row][:length], length) for row in rows])
            query_index.append((numbers[:, None] * kv_heads + head[:, None]).reshape(-1))
            key_index.append((nodes[:, None] * kv_heads + head[:, None]).reshape(-1))
            slots = query_start + np.arange(len(rows) * kv_heads * width).reshape(len(rows), kv_heads, width)
            for place, row in enumerate(rows):
                slot_of[query_numbers[row]] = slots[place, :, : len(queries[row])].T
            blocks = _blocks([queries[row] for row in rows], positions, device)
            buckets.append(_Bucket(len(rows), width, length, query_start, key_start, blocks))
            query_start += len(rows) * kv_heads * width
            key_start += len(rows) * kv_heads * length
            scores += sum(block.rows * (block.last - block.first) * block.keys for block in blocks) * heads
        self._buckets = tuple(buckets)
        self._keep_weights = scores * 4 * layers <= _KEPT_BYTES
        self._query_index = torch.from_numpy(np.concatenate(query_index)).to(device)
        self._key_index = torch.from_numpy(np.concatenate(key_index)).to(device)
        self._slots = torch.from_numpy(slot_of.reshape(-1)).to(device)
        real = np.zeros(query_start, bool)
        real[slot_of.reshape(-1)] = True
        self._gradient_index = torch.where(
            torch.from_numpy(real).to(device), self._query_index, torch.full_like(self._query_index, count * kv_heads)
        )

    def forward(self, queries: Tensor, keys_values: Tensor) -> tuple[Tensor, Saved]:
        """Attention outputs of all queries.

        Args:
            queries: ``[q, heads * head_dim]``, scaled and rotated.
            keys_values: ``[n, kv_heads * 2 * head_dim]``: of each node, for each head, its key and its value.

        Returns:
            ``[q, heads * head_dim]``, and what ``backward`` needs.
        """
        width = self._share * self._head_dim
        gathered = queries.view(-1, width).index_select(0, self._query_index)
        context = keys_values.view(-1, 2 * self._head_dim).index_select(0, self._key_index)
        outputs = torch.empty_like(gathered)
        saved = Saved(gathered, context, [])
        for bucket in self._buckets:
            query, key, value = self._views(bucket, gathered, context)
            output = self._query_view(bucket, outputs)
            for block in bucket.blocks:
                some, rows = self._part(block)
                weights = self._weights(block, query, key)
                torch.bmm(weights, value[:some, : block.keys], out=output[:some, rows])
                if self._keep_weights:
                    saved.weights.append(weights)
        return outputs.index_select(0, self._slots).view(-1, self._kv_heads * width), saved

    def backward(self, gradient: Tensor, saved: Saved) -> tuple[Tensor, Tensor]:
        """Gradients of queries and of keys and values, from that of the outputs; shapes as in ``forward``.

        Args:
            gradient: ``[q + 1, heads * head_dim]``, the last row zeros (it is what padded queries read).
            saved: From ``forward``.
        """
        width = self._share * self._head_dim
        outputs = gradient.view(-1, width).index_select(0, self._gradient_index)
        query_gradient = torch.empty_like(saved.queries)
        context_gradient = torch.zeros_like(saved.keys_values)
        kept = iter(saved.weights)
        for bucket in self._buckets:
            query, key, value = self._views(bucket, saved.queries, saved.keys_values)
            query_grad, key_grad, value_grad = self._views(bucket, query_gradient, context_gradient)
            output = self._query_view(bucket, outputs)
            for block in bucket.blocks:
                some, rows = self._part(block)
                weights = next(kept) if self._keep_weights else self._weights(block, query, key)
                out = output[:some, rows]
                value_grad[:some, : block.keys].baddbmm_(weights.transpose(1, 2), out)
                scores = torch.bmm(out, value[:some, : block.keys].transpose(1, 2))
                scores = torch._softmax_backward_data(scores, weights, -1, scores.dtype)
                torch.bmm(scores, key[:some, : block.keys], out=query_grad[:some, rows])
                key_grad[:some, : block.keys].baddbmm_(scores.transpose(1, 2), query[:some, rows])
        return query_gradient.index_select(0, self._slots).view(-1, self._kv_heads * width), context_gradient

    def add_to_nodes(self, context_gradient: Tensor, nodes: int) -> Tensor:
        """Sum the rows' gradients of keys and values over each node: ``[nodes, kv_heads * 2 * head_dim]``."""
        total = context_gradient.new_zeros(nodes * self._kv_heads, 2 * self._head_dim)
        return total.index_add_(0, self._key_index, context_gradient).view(nodes, -1)

    def _weights(self, block: _Block, query: Tensor, key: Tensor) -> Tensor:
        some, rows = self._part(block)
        scores = torch.bmm(query[:some, rows], key[:some, : block.keys].transpose(1, 2))
        shape = (block.rows, self._kv_heads, block.last - block.first, self._share, block.keys)
        scores.view(shape).add_(block.mask)
        return torch.softmax(scores, -1)

    def _part(self, block: _Block) -> tuple[int, slice]:
        return block.rows * self._kv_heads, slice(block.first * self._share, block.last * self._share)

    def _query_view(self, bucket: _Bucket, flat: Tensor) -> Tensor:
        count = bucket.rows * self._kv_heads
        part = flat[bucket.query_start : bucket.query_start + count * bucket.queries]
        return part.view(count, bucket.queries * self._share, self._head_dim)

    def _views(self, bucket: _Bucket, queries: Tensor, context: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        count = bucket.rows * self._kv_heads
        part = context[bucket.key_start : bucket.key_start + count * bucket.keys]
        both = part.view(count, bucket.keys, 2 * self._head_dim)
        return self._query_view(bucket, queries), both[..., : self._head_dim], both[..., self._head_dim :]


def _filled(values: np.ndarray, length: int) -> np.ndarray:
    """``values`` padded to ``length`` with the last one."""
    return np.pad(values, (0, length - len(values)), mode="edge")


def _grouped(paths: Sequence[np.ndarray], queries: Sequence[np.ndarray]) -> list[list[int]]:
    """Buckets of rows with similar shapes, each in falling order of the number of queries."""
    order = sorted((row for row in range(len(paths)) if len(queries[row])), key=lambda row: (-len(queries[row]), row))
    groups: list[list[int]] = []
    width = length = 0
    for row in order:
        needed = len(queries[row])
        reach = int(queries[row][-1]) + 1
        longer = max(length, reach)
        if groups:
            waste = width * longer - needed * reach + len(groups[-1]) * width * (longer - length)
        if not groups or waste > _ROW_OVERHEAD:
            groups.append([row])
            width, length = needed, reach
        else:
            groups[-1].append(row)
            length = longer
    return groups


def _blocks(queries: Sequence[np.ndarray], positions: np.ndarray, device: torch.device) -> tuple[_Block, ...]:
    blocks: list[_Block] = []
    width = positions.shape[1]
    pieces = -(-width // BLOCK)
    edges = [width * piece // pieces for piece in range(pieces + 1)]
    for first, last in pairwise(edges):
        rows = sum(len(own) > first for own in queries)
        part = positions[:rows, first:last]
        keys = int(part.max()) + 1
        hidden = np.arange(keys)[None, None] > part[..., None]
        mask = np.where(hidden, np.float32(-np.inf), np.float32(0.0))[:, None, :, None]
        blocks.append(_Block(rows, first, last, keys, torch.from_numpy(mask).to(device)))
    return tuple(blocks)
