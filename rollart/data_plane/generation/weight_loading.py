"""A model's parameters as named bytes, and back: how a version of the weights enters a model in place.

Tied parameters appear once, under the first of their names. Nothing is written before every tensor of
the manifest has been checked against the model. Parameters whose dtype differs from the manifest's
are converted; the checksum then is the manifest's, otherwise it is computed from the parameters' own memory.

Who calls it: the model runner.
"""

from __future__ import annotations

import numpy as np
import torch

from rollart.data_plane.weights.layout import checksum_of
from rollart.data_plane.weights.store import Manifest, NamedBytes, TensorEntry, views


def dtype_name(dtype: torch.dtype) -> str:
    """The name that manifests use: ``float32``, ``bfloat16``, ..."""
    return str(dtype).removeprefix("torch.")


def named_bytes(model: torch.nn.Module) -> list[NamedBytes]:
    """The parameters as the weight store takes them; views of the memory where it is on the CPU."""
    return [
        NamedBytes(name, dtype_name(parameter.dtype), tuple(parameter.shape), _bytes(parameter))
        for name, parameter in model.named_parameters()
    ]


def _bytes(parameter: torch.Tensor) -> np.ndarray:
    flat: np.ndarray = parameter.detach().contiguous().reshape(-1).view(torch.uint8).cpu().numpy()
    return flat


def model_checksum(model: torch.nn.Module, bucket_bytes: int) -> str:
    """The checksum that a manifest of the model's present weights has."""
    return checksum_of(named_bytes(model), bucket_bytes)


def check_manifest(model: torch.nn.Module, manifest: Manifest) -> None:
    """Refuse a manifest that does not hold exactly the model's parameters.

    Raises:
        ValueError: a tensor is unknown, missing, twice, of another shape or of an unknown dtype.
    """
    names = _names(model)
    wanted = {id(parameter): name for name, parameter in model.named_parameters()}
    for entry in manifest.tensors:
        where = f"version {manifest.version}: tensor {entry.name!r}"
        parameter = names.get(entry.name)
        if parameter is None:
            raise ValueError(f"{where} is not a parameter of the engine's model: do trainer and engine load one model?")
        if tuple(parameter.shape) != tuple(entry.shape):
            raise ValueError(f"{where} has shape {list(entry.shape)}, the engine's has {list(parameter.shape)}")
        dtype = _dtype(entry)
        if dtype is None or entry.size != parameter.numel() * dtype.itemsize:
            raise ValueError(f"{where} has dtype {entry.dtype} and {entry.size} bytes, which do not fit its shape")
        if wanted.pop(id(parameter), None) is None:
            raise ValueError(f"{where} appears twice (tied parameters are published once)")
    if wanted:
        raise ValueError(
            f"version {manifest.version}: lacks {len(wanted)} tensors, first {next(iter(wanted.values()))!r}"
        )


def load_weights(model: torch.nn.Module, manifest: Manifest, flat: np.ndarray) -> str:
    """Copy a version into the model's parameters, in place.

    Args:
        model: The engine's model.
        manifest: Layout of ``flat``.
        flat: ``uint8[manifest.size]``, verified by the weight store's reader.

    Returns:
        The checksum of the weights that the model now has.

    Raises:
        ValueError: as :func:`check_manifest`, or ``flat`` has another size; nothing has been written.
    """
    check_manifest(model, manifest)
    if flat.dtype != np.uint8 or flat.shape != (manifest.size,):
        raise ValueError(f"version {manifest.version}: got {flat.dtype}{list(flat.shape)} for {manifest.size} bytes")
    names = _names(model)
    converted = False
    for entry, data in views(manifest, flat):
        parameter = names[entry.name]
        converted |= _copy(parameter, entry, data)
    if converted or not manifest.buckets:
        return manifest.checksum
    tensors = [
        NamedBytes(entry.name, entry.dtype, entry.shape, _bytes(names[entry.name])) for entry in manifest.tensors
    ]
    return checksum_of(tensors, manifest.buckets[0].size)


def _copy(parameter: torch.Tensor, entry: TensorEntry, data: np.ndarray) -> bool:
    """Copy one tensor; whether its dtype was converted."""
    dtype = _dtype(entry)
    target = parameter.detach()
    assert dtype is not None, "checked before"
    if dtype == parameter.dtype and target.device.type == "cpu" and target.is_contiguous():
        np.copyto(target.reshape(-1).view(torch.uint8).numpy(), data)
        return False
    source = torch.from_numpy(np.array(data)).view(dtype).view(tuple(entry.shape))  # a copy: data may be read-only
    target.copy_(source)
    return dtype != parameter.dtype


def _names(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Parameters by every name they have, tied ones under each."""
    return dict(model.named_parameters(remove_duplicate=False))


def _dtype(entry: TensorEntry) -> torch.dtype | None:
    dtype = getattr(torch, entry.dtype, None)
    return dtype if isinstance(dtype, torch.dtype) and dtype.is_floating_point else None
