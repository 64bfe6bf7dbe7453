"""One codec for everything that crosses a process border: msgpack over the types of the system.

Both runtimes, the event log's readers and the environment processes use it, so a value that works in
process works across Ray. Nothing is pickled. Arrays travel as a dtype character and raw bytes.
"""

from __future__ import annotations

from collections.abc import Hashable
from functools import lru_cache
from typing import Any, TypeVar, cast

import msgspec
import numpy as np

T = TypeVar("T")

_ARRAY = 1
_DTYPES: dict[str, np.dtype[Any]] = {
    "i": np.dtype(np.int32),
    "l": np.dtype(np.int64),
    "f": np.dtype(np.float32),
    "d": np.dtype(np.float64),
}
_CODES = {dtype: code for code, dtype in _DTYPES.items()}


def _encode_hook(value: object) -> object:
    if isinstance(value, np.ndarray):
        code = _CODES.get(value.dtype)
        if code is None or value.ndim != 1:
            form = f"{value.dtype}{list(value.shape)}"
            raise TypeError(f"arrays cross borders as 1-d int32, int64, float32 or float64, not {form}")
        return msgspec.msgpack.Ext(_ARRAY, code.encode() + value.tobytes())
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{type(value).__name__} cannot cross a process border")


def _ext_hook(code: int, data: memoryview) -> object:
    if code != _ARRAY:
        raise ValueError(f"unknown extension {code}")
    return np.frombuffer(data[1:], dtype=_DTYPES[chr(data[0])])


def _decode_hook(kind: type, value: Any) -> Any:
    if kind is np.ndarray and isinstance(value, np.ndarray):
        return value
    raise TypeError(f"cannot read {kind!r} from {type(value).__name__}")


_encoder = msgspec.msgpack.Encoder(enc_hook=_encode_hook)


def encode(value: object) -> bytes:
    """Encode any value made of the system's types, built-ins and one-dimensional arrays.

    Raises:
        TypeError: a part of ``value`` cannot cross a process border.
    """
    return _encoder.encode(value)


@lru_cache(maxsize=1024)
def _decoder(kind: Any) -> msgspec.msgpack.Decoder[Any]:
    return msgspec.msgpack.Decoder(kind, dec_hook=_decode_hook, ext_hook=_ext_hook)


def decode(data: bytes | memoryview, kind: type[T] | Any) -> T:
    """Decode and validate ``data`` as ``kind``. Arrays are read-only views into ``data``.

    Raises:
        msgspec.ValidationError: the data does not have that type.
    """
    result: T = _decoder(cast(Hashable, kind)).decode(data)
    return result
