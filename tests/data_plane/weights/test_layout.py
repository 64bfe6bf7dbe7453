"""The layout covers every byte once, and the checksum depends on the bytes and on nothing else."""

from __future__ import annotations

import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from rollart.data_plane.weights.layout import (
    ALIGNMENT,
    bucket_parts,
    checksum_of,
    checksum_of_bytes,
    layout,
    slices,
    version_checksum,
)
from rollart.data_plane.weights.store import NamedBytes


def tensors_of(sizes: list[int], seed: int = 0) -> list[NamedBytes]:
    draw = np.random.default_rng(seed)
    return [
        NamedBytes(f"t{i}", "uint8", (size,), draw.integers(0, 256, size, dtype=np.uint8))
        for i, size in enumerate(sizes)
    ]


def flatten(tensors: list[NamedBytes]) -> np.ndarray:
    """The flattened weights, written down directly from the definition."""
    entries, size = layout(tensors)
    flat = np.zeros(size, np.uint8)
    for entry, tensor in zip(entries, tensors, strict=True):
        flat[entry.offset : entry.offset + entry.size] = tensor.data
    return flat


@given(st.lists(st.integers(0, 400), min_size=1, max_size=8).filter(any), st.integers(1, 700))
def test_buckets_hold_the_flattened_weights(sizes: list[int], bucket_bytes: int) -> None:
    tensors = tensors_of(sizes)
    flat = flatten(tensors)
    entries, size = layout(tensors)
    assert all(entry.offset % ALIGNMENT == 0 for entry in entries)
    cut = []
    for piece, parts in bucket_parts(entries, tensors, bucket_bytes):
        data = b"".join(bytes(part) for part in parts)
        assert data == flat[piece.offset : piece.offset + piece.size].tobytes()
        cut.append(data)
    assert b"".join(cut) == flat.tobytes()
    assert len(flat) == size
    assert checksum_of(tensors, bucket_bytes) == version_checksum(map(checksum_of_bytes, cut))


def test_checksum_is_the_documented_one() -> None:
    tensors = tensors_of([100, 30])
    flat = flatten(tensors).tobytes()
    digits = "".join(xxhash.xxh3_64_hexdigest(flat[i : i + 128]) for i in range(0, len(flat), 128))
    assert checksum_of(tensors, 128) == xxhash.xxh3_64_hexdigest(digits.encode())


def test_one_changed_byte_changes_the_checksum() -> None:
    tensors = tensors_of([100, 30, 500])
    before = checksum_of(tensors, 256)
    tensors[2].data[499] ^= 1
    assert checksum_of(tensors, 256) != before


def test_slices_cover_all_bytes() -> None:
    assert slices(130, 64) == ((0, 64), (64, 64), (128, 2))
    assert slices(0, 64) == ()
    with pytest.raises(ValueError, match="at least 1"):
        slices(1, 0)


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ([], "at least one tensor"),
        ([NamedBytes("w", "float32", (1,), np.zeros(1, np.float32))], "uint8"),
        ([NamedBytes("w", "uint8", (2,), np.zeros(4, np.uint8)[::2])], "contiguous"),
        (tensors_of([1]) * 2, "twice"),
        (tensors_of([0, 0]), "every tensor is empty"),
    ],
)
def test_bad_tensors_are_refused(tensors: list[NamedBytes], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        layout(tensors)
