"""Weights enter a model in place, whole or not at all, and are named by the trainer's checksum."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from torch_bench import BUCKET_BYTES, llama, qwen3

from rollart.data_plane.generation.weight_loading import load_weights, model_checksum, named_bytes
from rollart.data_plane.weights.shared_memory import SharedMemoryReader, SharedMemoryWriter
from rollart.data_plane.weights.store import Manifest, TensorEntry


@pytest.fixture
def published(tmp_path: Path) -> tuple[Manifest, np.ndarray]:
    """Qwen3's version 1."""
    writer = SharedMemoryWriter("test", BUCKET_BYTES, tmp_path, tmp_path)
    manifest = writer.publish(1, named_bytes(qwen3(1)))
    flat = SharedMemoryReader("test", tmp_path, tmp_path).pull(manifest)
    flat.flags.writeable = False
    writer.close()
    return manifest, flat


def change(manifest: Manifest, position: int, **changes: object) -> Manifest:
    tensors = list(manifest.tensors)
    tensors[position] = msgspec.structs.replace(tensors[position], **changes)
    return msgspec.structs.replace(manifest, tensors=tuple(tensors))


def test_loading_makes_the_models_equal(published: tuple[Manifest, np.ndarray]) -> None:
    manifest, flat = published
    model, wanted = qwen3(0), qwen3(1)
    addresses = [parameter.data_ptr() for parameter in model.parameters()]
    assert model_checksum(model, BUCKET_BYTES) != manifest.checksum
    assert load_weights(model, manifest, flat) == manifest.checksum == model_checksum(model, BUCKET_BYTES)
    assert [parameter.data_ptr() for parameter in model.parameters()] == addresses
    for mine, other in zip(model.parameters(), wanted.parameters(), strict=True):
        assert torch.equal(mine, other)
    assert model.lm_head.weight is model.model.embed_tokens.weight


def test_a_tied_tensor_may_go_by_either_name(published: tuple[Manifest, np.ndarray]) -> None:
    manifest, flat = published
    position = [entry.name for entry in manifest.tensors].index("model.embed_tokens.weight")
    model = qwen3(0)
    load_weights(model, change(manifest, position, name="lm_head.weight"), flat)
    assert torch.equal(model.model.embed_tokens.weight, qwen3(1).model.embed_tokens.weight)


def test_another_dtype_is_converted(published: tuple[Manifest, np.ndarray]) -> None:
    manifest, flat = published
    model = qwen3(0).to(torch.bfloat16)
    assert load_weights(model, manifest, flat) == manifest.checksum
    for mine, other in zip(model.parameters(), qwen3(1).parameters(), strict=True):
        assert torch.equal(mine, other.to(torch.bfloat16))


def test_what_does_not_fit_is_refused_before_anything_is_written(published: tuple[Manifest, np.ndarray]) -> None:
    manifest, flat = published
    last = len(manifest.tensors) - 1
    extra = TensorEntry("lm_head.weight", "float32", (99, 48), 0, 99 * 48 * 4)
    broken = [
        (change(manifest, last, name="someone.else"), "'someone.else' is not a parameter"),
        (change(manifest, last, shape=(7,)), r"has shape \[7\], the engine's has \[48\]"),
        (change(manifest, last, dtype="float64"), "dtype float64"),
        (change(manifest, last, dtype="banana"), "dtype banana"),
        (
            msgspec.structs.replace(manifest, tensors=manifest.tensors[:-1]),
            "lacks 1 tensors, first 'model.norm.weight'",
        ),
        (msgspec.structs.replace(manifest, tensors=(*manifest.tensors, extra)), "appears twice"),
        (msgspec.structs.replace(manifest, size=manifest.size + 64), "for .* bytes"),
    ]
    model = qwen3(0)
    before = model_checksum(model, BUCKET_BYTES)
    for wrong, message in broken:
        with pytest.raises(ValueError, match=message):
            load_weights(model, wrong, flat)
    assert model_checksum(model, BUCKET_BYTES) == before
    with pytest.raises(ValueError, match="do trainer and engine load one model"):
        load_weights(llama(0), change(manifest, 0, name="model.layers.9.weight"), flat)
