"""The torch engine passes the conformance suite for every model family it is tested with."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from engine_conformance import EngineTokens
from torch_bench import Build, TorchBench, llama, qwen3


@pytest.fixture(params=[qwen3, llama])
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[TorchBench]:
    build: Build = request.param
    bench = TorchBench(build, tmp_path)
    yield bench
    bench.close()


class TestTorchEngine(EngineTokens):
    """The suite on Qwen3 and Llama."""
