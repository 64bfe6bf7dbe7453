"""The running requests' tokens and sampling parameters, as arrays indexed by session slot.

A step of the torch engine reads and writes many sessions with a few numpy operations on these arrays. A
session's tokens stay in its row between turns; the other columns are set when a request is admitted.
Invariant: ``kv_length[slot] < length[slot]`` while the slot's request runs: the first ``kv_length`` tokens
have keys and values, the rest is still to be computed.

Who calls it: the torch engine core; :mod:`~rollart.data_plane.generation.composing` reads it.
"""

from __future__ import annotations

import numpy as np

from rollart.data_plane.generation.sampling import RowParameters
from rollart.types import SamplingParams


class Slots:
    """See the module docstring.

    Attributes:
        tokens: ``int32[slots, max_context]``, histories.
        logprobs: ``float32[slots, max_context]``, valid over the action of the last request.
        length, kv_length: ``int64[slots]``.
        limit: ``int64[slots]``, length at which the action ends.
        key: ``uint64[slots]``, of the sampling noise.
        stops: ``int64[slots, n]``, stop tokens, -1 where there is none.
    """

    def __init__(self, slots: int, max_context: int) -> None:
        self.tokens = np.zeros((slots, max_context), np.int32)
        self.logprobs = np.zeros((slots, max_context), np.float32)
        self.length = np.zeros(slots, np.int64)
        self.kv_length = np.zeros(slots, np.int64)
        self.limit = np.zeros(slots, np.int64)
        self.key = np.zeros(slots, np.uint64)
        self.stops = np.full((slots, 1), -1, np.int64)
        self._temperature = np.ones(slots, np.float32)
        self._top_p = np.ones(slots, np.float32)
        self._top_k = np.zeros(slots, np.int64)
        self._plain = np.ones(slots, np.bool_)

    def configure(self, slot: int, sampling: SamplingParams, limit: int, key: int) -> None:
        """Set how the slot's action is sampled and the length at which it ends."""
        self.limit[slot] = limit
        self.key[slot] = key
        self._temperature[slot] = sampling.temperature
        self._top_p[slot] = sampling.top_p
        self._top_k[slot] = sampling.top_k
        self._plain[slot] = sampling.temperature == 1 and sampling.top_p >= 1 and sampling.top_k == 0
        stops = sampling.stop_token_ids
        missing = len(stops) - self.stops.shape[1]
        if missing > 0:
            self.stops = np.pad(self.stops, ((0, 0), (0, missing)), constant_values=-1)
        self.stops[slot] = -1
        self.stops[slot, : len(stops)] = stops

    def sampling_of(self, slots: np.ndarray) -> RowParameters | None:
        """How these slots sample; ``None`` if all of them at temperature 1 without top-p and top-k."""
        if self._plain[slots].all():
            return None
        return RowParameters(self._temperature[slots], self._top_p[slots], self._top_k[slots])
