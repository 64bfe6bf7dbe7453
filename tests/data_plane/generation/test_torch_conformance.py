"""The torch engine passes the conformance suite for every model family it is tested with."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from engine_conformance import EngineSemantics, EngineTokens
from torch_bench import TorchBench, llama, qwen3


@pytest.fixture
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[TorchBench]:
    build, fused = request.param
    bench = TorchBench(build, tmp_path, fused=fused)
    yield bench
    bench.close()


@pytest.mark.parametrize("bench", [pytest.param((qwen3, True), id="qwen3")], indirect=True)
class TestSemantics(EngineSemantics):
    """Sessions, answers and versions do not depend on the model."""


@pytest.mark.parametrize(
    "bench",
    [
        pytest.param((qwen3, True), id="qwen3-fused"),
        pytest.param((llama, True), id="llama-fused"),
        pytest.param((qwen3, False), id="qwen3-modules"),
    ],
    indirect=True,
)
class TestTokens(EngineTokens):
    """Tokens, on both decoders."""
