"""Which tokens a step computes: one for each decoding session, and prompt chunks within a budget.

Pure over the slots' arrays: composing a batch changes nothing; the core records what has been computed.

Who calls it: the torch engine core, once a step.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rollart.data_plane.generation.attention import TokenRun
from rollart.data_plane.generation.model_runner import Batch
from rollart.data_plane.generation.slots import Slots


class Composition(NamedTuple):
    """A step.

    Attributes:
        batch: What the model computes.
        sampled: ``int64[S]``, slots that sample a token, in the order of the batch's logits.
        prefill_tokens: Tokens of prompt chunks in the batch.
    """

    batch: Batch
    sampled: np.ndarray
    prefill_tokens: int


def compose(slots: Slots, running: np.ndarray, budget: int) -> Composition:
    """Compose the next step.

    Args:
        slots: The arrays; each running request has at least one token without KV.
        running: ``int64[n]``, n >= 1, slots of the running requests by admission.
        budget: Most prompt tokens, at least 1.
    """
    pending = slots.length[running] - slots.kv_length[running]
    is_single = pending == 1
    singles = np.sort(running[is_single])
    positions = slots.length[singles] - 1
    tokens = slots.tokens[singles, positions].astype(np.int64)
    if len(singles) == len(running):
        batch = Batch(tokens, positions, singles, len(singles), [], np.arange(len(singles)))
        return Composition(batch, singles, 0)
    chunks, complete = _chunks(slots, running[~is_single], budget)
    count = sum(chunk.size for chunk in chunks)
    ends = len(singles) + np.cumsum([chunk.size for chunk in chunks]) - 1
    batch = Batch(
        np.concatenate([tokens, *(slots.tokens[c.slot, c.start : c.start + c.size] for c in chunks)]),
        np.concatenate([positions, *(np.arange(c.start, c.start + c.size) for c in chunks)]),
        np.concatenate([singles, *(np.full(c.size, c.slot) for c in chunks)]),
        len(singles),
        chunks,
        np.concatenate([np.arange(len(singles)), ends[complete]]),
    )
    last = np.array([chunk.slot for chunk in chunks], np.int64)[complete]
    return Composition(batch, np.concatenate([singles, last]), count)


def _chunks(slots: Slots, rows: np.ndarray, budget: int) -> tuple[list[TokenRun], np.ndarray]:
    """Prompt chunks, first come first served, and which of them complete their prompt."""
    chunks: list[TokenRun] = []
    complete: list[bool] = []
    for slot in rows.tolist():
        start, length = int(slots.kv_length[slot]), int(slots.length[slot])
        count = min(length - start, budget)
        chunks.append(TokenRun(slot, start, count))
        complete.append(start + count == length)
        budget -= count
        if budget == 0:
            break
    return chunks, np.array(complete, np.bool_)
