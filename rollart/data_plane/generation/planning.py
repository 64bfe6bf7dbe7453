"""Cuts a step's tokens into pieces of attention, by what calls and copies cost.

One more kernel call costs a fixed time, a copy of a session's keys and values costs by their size, and so does
attention to padding or to idle slots. The planner takes the cheapest by a small model of these costs; results
are the same up to rounding whatever it takes.

Who calls it: the model runner, once a step.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch

from rollart.data_plane.generation.attention import Chunks, GatheredRows, Piece, Rows, TokenRun, Tokens
from rollart.data_plane.generation.kv_cache import KVCache


class Costs(NamedTuple):
    """Seconds, as the planner estimates them.

    Attributes:
        call: One more piece in one layer.
        copied_byte: Gathering one byte of keys or values.
        multiplication: One multiplication and addition of attention.
    """

    call: float
    copied_byte: float
    multiplication: float


COSTS = {"cpu": Costs(4e-5, 1e-10, 5e-11), "cuda": Costs(3e-5, 1e-12, 1e-13)}
"""Measured on one CPU core of a server; estimated from the data sheet for accelerators."""

IDLE_READ = 2.0
"""Attention to an idle slot costs this much of copying one."""


class Planner:
    """Makes the pieces of a step. One for each cache.

    Args:
        cache: Where the keys and values are.
        heads: Query heads.
        costs: ``None`` takes those of the cache's device.
    """

    def __init__(self, cache: KVCache, heads: int, costs: Costs | None = None) -> None:
        reference = cache.keys[0]
        self._cache = cache
        self._device = reference.device
        self._dtype = reference.dtype
        self._steps = torch.arange(cache.max_length, device=self._device)
        costs = costs or COSTS.get(self._device.type, COSTS["cuda"])
        self._call = costs.call
        self._copy = costs.copied_byte * 2 * cache.kv_heads * cache.head_dim * self._dtype.itemsize
        """Gathering one token's key and value."""
        self._score = costs.multiplication * 2 * heads * cache.head_dim
        """Attention of one token to one other."""

    def rows(self, first: int, slots: np.ndarray, lengths: np.ndarray) -> list[Piece]:
        """Pieces for single tokens of different sessions.

        Args:
            first: Index of the first of these tokens in the flattened sequence.
            slots: ``int64[n]``, rising.
            lengths: ``int64[n]``, tokens in each history, the new one included.
        """
        count, width = len(slots), int(lengths.max())
        borders = (np.flatnonzero(np.diff(slots) > 1) + 1).tolist()
        idle = int(slots[-1]) - int(slots[0]) + 1 - count
        gather = count * width * self._copy
        if idle * width * self._copy * IDLE_READ <= min(gather, len(borders) * self._call):
            return [self._range(first, slots, lengths)]
        if gather <= len(borders) * self._call:
            index = self._tensor(self._cache.gather_index(slots))
            return [GatheredRows(first, count, index, width, self._row_mask(lengths, width))]
        return [
            self._range(first + start, slots[start:end], lengths[start:end])
            for start, end in pairwise([0, *borders, count])
        ]

    def chunks(self, first: int, runs: Sequence[TokenRun]) -> list[Piece]:
        """Pieces for consecutive tokens of different sessions, one run after the other, by rising size."""
        pieces: list[Piece] = []
        start = width = 0
        for number, run in enumerate(runs):
            end = run.start + run.size
            wider = max(width, end)
            alone = self._call + run.size * end * self._score
            so_far = (number - start) * runs[number - 1].size * width * self._score if number else 0.0
            if number > start and (number + 1 - start) * run.size * wider * self._score > so_far + alone:
                pieces.append(self._padded(first, runs[start:number], width))
                first += pieces[-1].count
                start, width = number, end
            else:
                width = wider
        pieces.append(self._padded(first, runs[start:], width))
        return pieces

    def tokens(self, first: int, run: TokenRun) -> Piece:
        """Piece for consecutive tokens of one session, each on its own."""
        hidden = self._steps > self._steps[run.start : run.start + run.size, None]
        return Tokens(first, run.size, run.slot, self._additive(hidden)[:, None, None, :])

    def _range(self, first: int, slots: np.ndarray, lengths: np.ndarray) -> Rows:
        low, high = int(slots[0]), int(slots[-1]) + 1
        width = int(lengths.max())
        if high - low == len(slots):
            return Rows(first, len(slots), low, high, width, self._row_mask(lengths, width), None)
        offsets = slots - low
        spread = np.ones(high - low, np.int64)  # an idle row attends to one token: no empty softmax
        spread[offsets] = lengths
        return Rows(first, len(slots), low, high, width, self._row_mask(spread, width), self._tensor(offsets))

    def _padded(self, first: int, runs: Sequence[TokenRun], width: int) -> Chunks:
        slots, starts, sizes = np.array(runs, np.int64).T
        longest = int(sizes[-1])
        places = np.arange(longest)
        real = places < sizes[:, None]
        padded = (np.cumsum(sizes) - sizes)[:, None] + np.minimum(places, sizes[:, None] - 1)
        positions = self._tensor(starts[:, None] + places)
        return Chunks(
            first,
            int(sizes.sum()),
            self._tensor(self._cache.gather_index(slots)),
            width,
            self._tensor(padded.reshape(-1)),
            None if real.all() else self._tensor(np.flatnonzero(real)),
            self._additive(self._steps[:width] > positions[:, :, None])[:, None],
        )

    def _row_mask(self, lengths: np.ndarray, width: int) -> torch.Tensor | None:
        if int(lengths.min()) == width:
            return None
        return self._additive(self._steps[:width] >= self._tensor(lengths)[:, None])[:, None, None, :]

    def _additive(self, hidden: torch.Tensor) -> torch.Tensor:
        mask = torch.zeros(hidden.shape, dtype=self._dtype, device=self._device)
        return mask.masked_fill_(hidden, float("-inf"))

    def _tensor(self, array: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(array).to(self._device)
