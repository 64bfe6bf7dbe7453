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
        sampled: ``int64[S]``, slots that sample a token, rising, in the order of the batch's logits.
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
    if len(singles) == len(running):
        tokens = slots.tokens[singles, positions].astype(np.int64)
        return Composition(Batch(tokens, positions, singles, len(singles), [], np.arange(len(singles))), singles, 0)
    wanted, size = running[~is_single], pending[~is_single]
    size = np.minimum(size, budget - np.cumsum(size) + size)  # what the earlier ones leave of the budget
    by_size = np.argsort(size, kind="stable")
    by_size = by_size[size[by_size] > 0]
    wanted, size = wanted[by_size], size[by_size]
    start, ends = slots.kv_length[wanted], np.cumsum(size)
    total = int(ends[-1])
    chunk_slots = np.repeat(wanted, size)
    chunk_positions = np.arange(total) + np.repeat(start - ends + size, size)
    all_slots = np.concatenate([singles, chunk_slots])
    all_positions = np.concatenate([positions, chunk_positions])
    complete = start + size == slots.length[wanted]
    sample = np.concatenate([np.arange(len(singles)), len(singles) + ends[complete] - 1])
    sample = sample[np.argsort(all_slots[sample])]
    batch = Batch(
        slots.tokens[all_slots, all_positions].astype(np.int64),
        all_positions,
        all_slots,
        len(singles),
        [TokenRun(*run) for run in zip(wanted.tolist(), start.tolist(), size.tolist(), strict=True)],
        sample,
    )
    return Composition(batch, all_slots[sample], total)
