"""A small configuration, and a way to call the command line as a user does."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from rollart.cli.main import main

sys.path.insert(0, str(Path(__file__).parent))  # import-mode importlib adds no path for helpers

CONFIG = """\
run: {name: small, iterations: 2, runtime: in_process}
model: {tiny: {hidden: 32, layers: 1, heads: 2, kv_heads: 1, head_dim: 16, intermediate: 64, max_length: 256}}
domains:
  lake: {env: frozen_lake, args: {size: 3}, max_turns: 4, max_context: 128, max_new_tokens: 2}
  guess: {env: guess_number, max_turns: 4, max_context: 128, max_new_tokens: 2}
rollout: {groups_per_batch: 2, group_size: 2, max_environments: 16}
evaluation: {instances: 4}
"""


class Ran(NamedTuple):
    """How a command line went."""

    code: int
    out: str
    err: str


Rollart = Callable[..., Ran]


@pytest.fixture
def rollart(capsys: pytest.CaptureFixture[str]) -> Rollart:
    """Runs ``rollart ARGUMENTS`` in this process."""

    def call(*arguments: object) -> Ran:
        try:
            code = main([str(argument) for argument in arguments])
        except SystemExit as stop:
            code = int(stop.code or 0)
        captured = capsys.readouterr()
        return Ran(code, captured.out, captured.err)

    return call


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with ``CONFIG.yaml``."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "CONFIG.yaml").write_text(CONFIG)
    return tmp_path
