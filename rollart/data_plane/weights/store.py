"""The interface of the weight store: how versions travel from the trainer to the engines.

A version is cut into buckets, contiguous slices of the flattened weights in the manifest's tensor
order. It exists for readers only once its manifest is announced, which the control plane does after
``publish`` returned. Readers verify every bucket against the manifest, so that no engine ever runs
mixed or torn weights under a version's name.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec
import numpy as np


class TensorEntry(msgspec.Struct, frozen=True):
    """Where a tensor lies in the flattened weights.

    Attributes:
        name: Parameter name as in the Hugging Face state dict.
        dtype: ``float32``, ``bfloat16``, ...
        shape: Its shape.
        offset: First byte in the flattened weights (64-byte aligned).
        size: Bytes.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    size: int


class Bucket(msgspec.Struct, frozen=True):
    """A slice of the flattened weights.

    Attributes:
        key: Name in the store, unique for ever (a key is never reused).
        offset: First byte in the flattened weights.
        size: Bytes.
        checksum: xxh3-64 of the bytes, in hex.
    """

    key: str
    offset: int
    size: int
    checksum: str


class Manifest(msgspec.Struct, frozen=True):
    """Everything a reader needs to rebuild one version.

    Attributes:
        version: k of W_k.
        tensors: Layout of the flattened weights.
        buckets: Their slices, covering every byte.
        size: Total bytes.
        checksum: xxh3-64 over the bucket checksums, in hex: the version's checksum.
    """

    version: int
    tensors: tuple[TensorEntry, ...]
    buckets: tuple[Bucket, ...]
    size: int
    checksum: str


class NamedBytes(NamedTuple):
    """A parameter as the writer takes it: ``data`` is a flat ``uint8`` view of its memory."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    data: np.ndarray


class WeightStoreError(RuntimeError):
    """A version could not be written or read; the message names the version, the bucket and the cause."""


class WeightWriter(ABC):
    """The trainer's side."""

    @abstractmethod
    def publish(self, version: int, tensors: Sequence[NamedBytes]) -> Manifest:
        """Write a version's buckets. Blocking: call it off the event loop.

        Args:
            version: Newer than all that were published before.
            tensors: The parameters, in a fixed order.

        Raises:
            ValueError: the version is not newer.
            WeightStoreError: the store is full or gone.
        """

    @abstractmethod
    def retain(self, oldest: int) -> None:
        """Delete versions below ``oldest``."""

    @abstractmethod
    def close(self) -> None:
        """Delete everything this writer published."""


class WeightReader(ABC):
    """An engine's side."""

    @abstractmethod
    def pull(self, manifest: Manifest) -> np.ndarray:
        """The flattened weights of a version as ``uint8[manifest.size]``, verified. Blocking.

        Raises:
            WeightStoreError: a bucket is gone or its bytes do not match the manifest.
        """


def views(manifest: Manifest, flat: np.ndarray) -> Iterator[tuple[TensorEntry, np.ndarray]]:
    """Each tensor's bytes as a ``uint8`` view of the flattened weights."""
    for entry in manifest.tensors:
        yield entry, flat[entry.offset : entry.offset + entry.size]
