"""Keys and values of all sessions: one contiguous slot a session, in every layer.

Layout, for each layer: ``[slots, kv_heads, max_length, head_dim]``, so that a run of neighbouring slots
cut at any width is a view which attention kernels read without a copy. On the CPU the memory is
reserved and becomes resident only where tokens have been written. Values that were never written or
are out of date are never attended to (they lie beyond the session's valid length), but must stay
finite: a masked NaN still poisons a sum, so ``clear`` follows non-finite activations.

Who calls it: attention writes and reads, the model runner owns it.
"""

from __future__ import annotations

import numpy as np
import torch

ALIGNMENT = 64
"""Bytes, as torch aligns its own tensors: kernels may take other paths, with other rounding, on other addresses."""


class KVCache:
    """Fixed capacity; which slot belongs to whom is the session table's business.

    Args:
        layers: Decoder layers.
        slots: Sessions.
        max_length: Tokens of one session.
        kv_heads, head_dim: As the model's attention has them.
        dtype, device: As the model's.
    """

    def __init__(
        self,
        layers: int,
        slots: int,
        max_length: int,
        kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.slots = slots
        self.max_length = max_length
        self.kv_heads = kv_heads
        self.head_dim = head_dim
        shape = (slots, kv_heads, max_length, head_dim)
        self.keys = [_zeros(shape, dtype, device) for _ in range(layers)]
        self.values = [_zeros(shape, dtype, device) for _ in range(layers)]
        self._rows_of_keys = [tensor.view(slots * kv_heads, -1) for tensor in self.keys]
        self._rows_of_values = [tensor.view(slots * kv_heads, -1) for tensor in self.values]
        self._scratch = [self.keys[0].new_empty(0) for _ in range(2)]
        self._flat_keys = [tensor.view(-1, head_dim) for tensor in self.keys]
        self._flat_values = [tensor.view(-1, head_dim) for tensor in self.values]

    @staticmethod
    def slot_bytes(layers: int, max_length: int, kv_heads: int, head_dim: int, dtype: torch.dtype) -> int:
        """Bytes of one slot at full length."""
        return 2 * layers * max_length * kv_heads * head_dim * dtype.itemsize

    def write_index(self, slots: np.ndarray, positions: np.ndarray) -> np.ndarray:
        """Where tokens' keys and values go, for :meth:`write`.

        Args:
            slots, positions: ``int64[T]``.

        Returns:
            ``int64[T, kv_heads]``.
        """
        first = slots * (self.kv_heads * self.max_length) + positions
        heads = np.arange(self.kv_heads, dtype=np.int64) * self.max_length
        index: np.ndarray = first[:, None] + heads
        return index

    def write(self, layer: int, index: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Store keys and values of tokens, ``[T, kv_heads, head_dim]``."""
        self._flat_keys[layer].index_put_((index,), keys)
        self._flat_values[layer].index_put_((index,), values)

    def gather_index(self, slots: np.ndarray) -> np.ndarray:
        """``int64[n * kv_heads]`` of slots ``int64[n]``, for :meth:`gather`."""
        index: np.ndarray = slots[:, None] * self.kv_heads + np.arange(self.kv_heads)
        return index.reshape(-1)

    def gather(self, layer: int, index: torch.Tensor, width: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Copies of the first ``width`` keys and values of some slots, each ``[n, kv_heads, width, head_dim]``.

        They are overwritten by the next call.
        """
        rows, row = index.shape[0], width * self.head_dim
        size = rows * row
        if self._scratch[0].shape[0] < size:  # kept, since fresh memory costs as much as the copy
            self._scratch = [self.keys[0].new_empty(size) for _ in range(2)]
        copies = []
        for source, scratch in zip((self._rows_of_keys, self._rows_of_values), self._scratch, strict=True):
            copy = scratch[:size].view(rows, row)
            torch.index_select(source[layer][:, :row], 0, index, out=copy)
            copies.append(copy.view(-1, self.kv_heads, width, self.head_dim))
        return copies[0], copies[1]

    def clear(self) -> None:
        """Make every stored value finite again."""
        for tensor in (*self.keys, *self.values):
            tensor.zero_()


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    # numpy's zeros are pages that the kernel maps when they are first written; torch's are written at once
    size = int(np.prod(shape)) * dtype.itemsize
    memory = np.zeros(size + ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % ALIGNMENT
    return torch.from_numpy(memory[start : start + size]).view(dtype).view(shape)
