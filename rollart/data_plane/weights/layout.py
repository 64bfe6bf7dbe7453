"""How parameters lie in the flattened weights, how these are cut into buckets, and their checksums.

Pure and numpy only. The trainer (through a writer) and the engines call the same functions, so both
sides name a version's content by the same checksum without asking the store:

* tensors follow each other in the given order, each at the next multiple of :data:`ALIGNMENT` bytes;
* the gaps between them are zeros and belong to the buckets, and the total is a multiple of the alignment;
* bucket i holds bytes ``[i * bucket_bytes, min((i + 1) * bucket_bytes, size))``; a tensor may cross buckets;
* a bucket's checksum is the xxh3-64 of its bytes, the version's is the xxh3-64 of the bucket checksums'
  hex digits in order. It therefore depends on ``bucket_bytes``, which is one setting for the whole run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import xxhash

from rollart.data_plane.weights.store import NamedBytes, TensorEntry

ALIGNMENT = 64
"""Bytes; one cache line, and enough for every dtype and vector width."""

_ZEROS = memoryview(bytes(ALIGNMENT))


class Slice(NamedTuple):
    """Where a bucket lies in the flattened weights, in bytes."""

    offset: int
    size: int


def aligned(size: int) -> int:
    """``size`` rounded up to the alignment."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def layout(tensors: Sequence[NamedBytes]) -> tuple[tuple[TensorEntry, ...], int]:
    """Place tensors one after the other.

    Returns:
        The entries in the tensors' order, and the total size in bytes.

    Raises:
        ValueError: no tensors, only empty ones, a name twice, or ``data`` is not a contiguous one-dimensional
            ``uint8`` array.
    """
    if not tensors:
        raise ValueError("a version needs at least one tensor")
    entries: list[TensorEntry] = []
    names: set[str] = set()
    end = 0
    for name, dtype, shape, data in tensors:
        if name in names:
            raise ValueError(f"tensor {name!r} is listed twice: tied parameters are published once")
        if data.dtype != np.uint8 or data.ndim != 1 or not data.flags.c_contiguous:
            form = f"{data.dtype}{list(data.shape)}"
            raise ValueError(f"tensor {name!r}: data must be a contiguous 1-d uint8 view of its memory, not {form}")
        names.add(name)
        entries.append(TensorEntry(name, dtype, tuple(shape), end, len(data)))
        end += aligned(len(data))
    if end == 0:
        raise ValueError("a version needs at least one byte, but every tensor is empty")
    return tuple(entries), end


def slices(size: int, bucket_bytes: int) -> tuple[Slice, ...]:
    """Cut ``size`` bytes into buckets of ``bucket_bytes``, the last one possibly shorter.

    Raises:
        ValueError: ``bucket_bytes`` is not positive.
    """
    if bucket_bytes < 1:
        raise ValueError(f"bucket_bytes must be at least 1, not {bucket_bytes}")
    return tuple(Slice(offset, min(bucket_bytes, size - offset)) for offset in range(0, size, bucket_bytes))


def bucket_parts(
    entries: Sequence[TensorEntry], tensors: Sequence[NamedBytes], bucket_bytes: int
) -> Iterator[tuple[Slice, Iterator[memoryview]]]:
    """For each bucket, its bytes in order as parts: views into the tensors, and the zeros between them.

    ``entries`` are :func:`layout`'s for ``tensors``. The parts of a bucket must be consumed before the
    next bucket is taken.
    """
    end = entries[-1].offset + aligned(entries[-1].size)
    stream = _Stream(entries, tensors)
    for piece in slices(end, bucket_bytes):
        yield piece, stream.take(piece.size)


class _Stream:
    """The flattened weights as a stream of parts, without a copy."""

    def __init__(self, entries: Sequence[TensorEntry], tensors: Sequence[NamedBytes]) -> None:
        self._parts = self._all_parts(entries, tensors)
        self._rest = memoryview(b"")

    @staticmethod
    def _all_parts(entries: Sequence[TensorEntry], tensors: Sequence[NamedBytes]) -> Iterator[memoryview]:
        for entry, tensor in zip(entries, tensors, strict=True):
            if entry.size:
                yield tensor.data.data
            if gap := aligned(entry.size) - entry.size:
                yield _ZEROS[:gap]

    def take(self, size: int) -> Iterator[memoryview]:
        while size:
            if not len(self._rest):
                self._rest = next(self._parts)
            part, self._rest = self._rest[:size], self._rest[size:]
            size -= len(part)
            yield part


def checksum_of_bytes(data: bytes | memoryview) -> str:
    """xxh3-64 of some bytes, as 16 hex digits."""
    return xxhash.xxh3_64_hexdigest(data)


def version_checksum(bucket_checksums: Iterable[str]) -> str:
    """The version's checksum from its buckets' checksums, in bucket order."""
    return xxhash.xxh3_64_hexdigest("".join(bucket_checksums).encode())


def checksum_of(tensors: Sequence[NamedBytes], bucket_bytes: int) -> str:
    """The checksum that a manifest of these tensors has; reads the tensors once, copies nothing.

    Raises:
        ValueError: as :func:`layout` and :func:`slices`.
    """
    entries, _ = layout(tensors)
    return version_checksum(_checksum_of_parts(parts) for _, parts in bucket_parts(entries, tensors, bucket_bytes))


def _checksum_of_parts(parts: Iterable[memoryview]) -> str:
    state = xxhash.xxh3_64()
    for part in parts:
        state.update(part)
    return state.hexdigest()
