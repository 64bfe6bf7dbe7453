"""Exact causal attention over a prefix tree, forward and backward, as a few batched matrix products.

The nodes of a :class:`~rollart.data_plane.training.batching.MicroBatch` hold queries, keys and values.
Each row gathers the keys and values along its path, and asks for the queries of the nodes that it owns
(or of those among them whose output is needed), so that a shared node is computed once:

* rows with about as many queries go into one *bucket* and are padded to its longest path;
* a bucket's queries are cut into *blocks*; a block sees keys only up to its last query, so that up to half
  of the score matrix is never computed. How finely is a matter of cost, counted in scores;
* a padded query repeats the row's last one and its output is not read; a padded key is masked.

Why not ``scaled_dot_product_attention``: at 30 to 200 tokens a row its kernel takes twice as long, does
not skip what causality rules out, and computes shared prefixes again.

Who calls it: :mod:`rollart.data_plane.training.fast_forward`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

_CALLS = 10_000
"""What the calls for one block cost, forward and backward, in scores (about 10 ns each on a CPU core)."""

_SMALLEST_BLOCK = 24
"""Queries below which matrix products lose too much speed."""

_KEPT_BYTES = 1 << 28
"""Attention weights of a micro-batch beyond this (all layers) are computed again in the backward pass."""


@dataclass(frozen=True, slots=True)
class _Block:
    """Some queries of the first ``rows`` rows of a bucket, and the keys ``[0, keys)`` of these rows.

    In the flat query buffers the block is the contiguous ``[rows, kv_heads, queries, share * head_dim]``
    from ``start`` on (in units of the last dimension).
    """

    rows: int
    queries: int
    keys: int
    start: int
    mask: Tensor
    """``float32[rows, 1, queries, 1, keys]``: 0 where the query sees the key, else -inf."""


@dataclass(frozen=True, slots=True)
class _Bucket:
    """Rows padded to ``keys`` keys, which begin at ``start`` in the flat buffers."""

    rows: int
    keys: int
    start: int
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
        plan = _Plan(heads, kv_heads, count, device)
        self._buckets = tuple(
            plan.add([paths[row] for row in rows], [queries[row] for row in rows], [query_numbers[row] for row in rows])
            for rows in _grouped(queries, heads)
        )
        self._keep_weights = plan.scores * 4 * layers <= _KEPT_BYTES
        self._query_index, self._gradient_index, self._key_index, self._slots = (
            torch.from_numpy(index).to(device) for index in plan.indices()
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
        for block, key, value in self._steps(context):
            weights = self._weights(block, self._queries_of(block, gathered), key)
            torch.bmm(weights, value, out=self._queries_of(block, outputs))
            if self._keep_weights:
                saved.weights.append(weights)
        return outputs.index_select(0, self._slots).view(-1, self._kv_heads * width), saved

    def backward(self, gradient: Tensor, saved: Saved) -> tuple[Tensor, Tensor]:
        """Gradients of queries and of the gathered keys and values, from that of the outputs.

        Args:
            gradient: ``[q + 1, heads * head_dim]``, the last row zeros (it is what padded queries read).
            saved: From ``forward``.
        """
        width = self._share * self._head_dim
        outputs = gradient.view(-1, width).index_select(0, self._gradient_index)
        query_gradient = torch.empty_like(saved.queries)
        context_gradient = torch.zeros_like(saved.keys_values)
        kept = iter(saved.weights)
        steps = zip(self._steps(saved.keys_values), self._steps(context_gradient), strict=True)
        for (block, key, value), (_, key_gradient, value_gradient) in steps:
            query, output = self._queries_of(block, saved.queries), self._queries_of(block, outputs)
            weights = next(kept) if self._keep_weights else self._weights(block, query, key)
            value_gradient += torch.bmm(weights.transpose(1, 2), output)
            scores = torch.bmm(output, value.transpose(1, 2))
            scores = torch._softmax_backward_data(scores, weights, -1, scores.dtype)
            torch.bmm(scores, key, out=self._queries_of(block, query_gradient))
            key_gradient += torch.bmm(scores.transpose(1, 2), query)
        return query_gradient.index_select(0, self._slots).view(-1, self._kv_heads * width), context_gradient

    def add_to_nodes(self, context_gradient: Tensor, nodes: int) -> Tensor:
        """Sum the rows' gradients of keys and values over each node: ``[nodes, kv_heads * 2 * head_dim]``."""
        total = context_gradient.new_zeros(nodes * self._kv_heads, 2 * self._head_dim)
        return total.index_add_(0, self._key_index, context_gradient).view(nodes, -1)

    def _weights(self, block: _Block, query: Tensor, key: Tensor) -> Tensor:
        scores = torch.bmm(query, key.transpose(1, 2))
        scores.view(block.rows, self._kv_heads, block.queries, self._share, block.keys).add_(block.mask)
        return torch.softmax(scores, -1)

    def _queries_of(self, block: _Block, flat: Tensor) -> Tensor:
        """``[rows * kv_heads, queries * share, head_dim]``."""
        count = block.rows * self._kv_heads
        part = flat[block.start : block.start + count * block.queries]
        return part.view(count, block.queries * self._share, self._head_dim)

    def _steps(self, context: Tensor) -> Iterator[tuple[_Block, Tensor, Tensor]]:
        """Each block with its keys and values, ``[rows * kv_heads, keys, head_dim]`` views of ``context``."""
        for bucket in self._buckets:
            count = bucket.rows * self._kv_heads
            part = context[bucket.start : bucket.start + count * bucket.keys].view(count, bucket.keys, -1)
            for block in bucket.blocks:
                both = part[: block.rows * self._kv_heads, : block.keys]
                yield block, both[..., : self._head_dim], both[..., self._head_dim :]


class _Plan:
    """Collects the layout of the flat buffers, bucket by bucket."""

    def __init__(self, heads: int, kv_heads: int, queries: int, device: torch.device) -> None:
        self.scores = 0
        self._all_heads = heads
        self._heads = np.arange(kv_heads)[:, None]
        self._device = device
        self._slot_of = np.empty((queries, kv_heads), np.int64)
        self._query_index: list[np.ndarray] = []
        self._gradient_index: list[np.ndarray] = []
        self._key_index: list[np.ndarray] = []
        self._query_end = self._key_end = 0

    def add(self, paths: Sequence[np.ndarray], queries: Sequence[np.ndarray], numbers: Sequence[np.ndarray]) -> _Bucket:
        """A bucket of rows in falling order of the number of queries."""
        length = max(int(positions[-1]) + 1 for positions in queries)
        counts = np.array([len(positions) for positions in queries])
        width = int(counts[0])
        position = _stacked(queries, width)
        number = _stacked(numbers, width)
        start = self._key_end
        self._key_end += self._append(self._key_index, _stacked(paths, length))
        pieces = _pieces(len(paths) * self._all_heads, width)
        edges = [width * piece // pieces for piece in range(pieces + 1)]
        blocks = tuple(self._block(position, number, counts, first, last) for first, last in pairwise(edges))
        return _Bucket(len(paths), length, start, blocks)

    def indices(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """What to gather into the flat buffers (queries, gradients of outputs, keys), and each query's slots."""
        query, gradient, key = (
            np.concatenate(index) for index in (self._query_index, self._gradient_index, self._key_index)
        )
        return query, gradient, key, self._slot_of.reshape(-1)

    def _block(self, position: np.ndarray, number: np.ndarray, counts: np.ndarray, first: int, last: int) -> _Block:
        rows = int((counts > first).sum())
        position, number = position[:rows, first:last], number[:rows, first:last]
        keys = int(position.max()) + 1
        real = np.arange(first, last) < counts[:rows, None]
        start = self._query_end
        size = self._append(self._query_index, number)
        self._append(self._gradient_index, np.where(real, number, len(self._slot_of)))
        slots = start + np.arange(size).reshape(rows, len(self._heads), last - first)
        self._slot_of[number[real]] = slots.transpose(0, 2, 1)[real]
        self._query_end += size
        self.scores += rows * self._all_heads * (last - first) * keys
        hidden = np.arange(keys) > position[..., None]
        mask = np.where(hidden, np.float32(-np.inf), np.float32(0.0))[:, None, :, None]
        return _Block(rows, last - first, keys, start, torch.from_numpy(mask).to(self._device))

    def _append(self, index: list[np.ndarray], values: np.ndarray) -> int:
        """Add ``[rows, n]`` node or query numbers as ``[rows, kv_heads, n]`` row numbers; returns how many."""
        index.append((values[:, None] * len(self._heads) + self._heads).reshape(-1))
        return len(index[-1])


def _stacked(rows: Sequence[np.ndarray], width: int) -> np.ndarray:
    """Rows cut or padded to ``width``, with the last value."""
    result = np.empty((len(rows), width), np.int64)
    for place, row in enumerate(rows):
        length = min(len(row), width)
        result[place, :length] = row[:length]
        result[place, length:] = row[length - 1]
    return result


def _pieces(count: int, width: int) -> int:
    """Blocks to cut ``width`` queries of ``count`` rows and heads into.

    Every piece costs calls; p pieces compute ``count * width**2 / (2 * p)`` scores that causality rules out.
    """
    best = round(width * math.sqrt(count / (2 * _CALLS)))
    return max(1, min(best, width // _SMALLEST_BLOCK))


def _grouped(queries: Sequence[np.ndarray], heads: int) -> list[list[int]]:
    """Buckets of rows with similar shapes, each in falling order of the number of queries."""
    order = sorted((row for row in range(len(queries)) if len(queries[row])), key=lambda row: (-len(queries[row]), row))
    groups: list[list[int]] = []
    width = length = 0
    for row in order:
        needed = len(queries[row])
        reach = int(queries[row][-1]) + 1
        longer = max(length, reach)
        if groups:
            waste = width * longer - needed * reach + len(groups[-1]) * width * (longer - length)
        if not groups or waste * heads > 2 * _CALLS:
            groups.append([row])
            width, length = needed, reach
        else:
            groups[-1].append(row)
            length = longer
    return groups
