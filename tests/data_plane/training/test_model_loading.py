"""Models are made one at a time: engines that load at once in one process get the same model."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from rollart.config.model import TinyModelConfig
from rollart.data_plane.generation.weight_loading import model_checksum
from rollart.data_plane.training.models import build_tiny_model, load_model

SHAPE = TinyModelConfig(hidden=16, layers=2, heads=2, kv_heads=2, head_dim=8, intermediate=24)
AT_ONCE = 4


def test_loading_at_once(tmp_path: Path) -> None:
    def made(number: int) -> bytes:
        build_tiny_model(SHAPE, ["a", "b"], 3, tmp_path / str(number))
        return (tmp_path / str(number) / "model.safetensors").read_bytes()

    def checksum(number: int) -> str:
        return model_checksum(load_model(tmp_path / "0"), 1 << 16)

    first = made(0)
    expected = checksum(0)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        assert list(pool.map(checksum, range(AT_ONCE))) == [expected] * AT_ONCE
        assert list(pool.map(made, range(1, 1 + AT_ONCE))) == [first] * AT_ONCE
    assert made(0) == first, "building afterwards is not disturbed"
