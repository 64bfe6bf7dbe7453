"""Helpers of the weight-store tests: parameters, and pieces of code run by real further processes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from rollart.data_plane.weights.store import NamedBytes


@pytest.fixture
def make_tensors() -> Callable[[int], list[NamedBytes]]:
    """Five tensors of odd sizes, one of them empty, with content that depends on the seed."""

    def make(seed: int) -> list[NamedBytes]:
        draw = np.random.default_rng(seed)
        sizes = {"embed": 3001, "norm": 64, "empty": 0, "bias": 1, "head": 777}
        return [
            NamedBytes(name, "uint8", (size,), draw.integers(0, 256, size, dtype=np.uint8))
            for name, size in sizes.items()
        ]

    return make


@pytest.fixture
def start_process() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start ``python -c code args`` with pipes; whatever still runs at the end of the test is killed."""
    started: list[subprocess.Popen[str]] = []

    def start(code: str, *args: str | Path) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", code, *map(str, args)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()
