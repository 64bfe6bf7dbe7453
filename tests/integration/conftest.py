"""Whole runs of three small domains, and the plain synchronous loop's result for them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent / "modules"))

import plain_sync_loop
from whole_job import POOL

from rollart.config.config import Config

# Chosen so that one run has: two sizes of lakes, episodes that the environment, the turn limit and the context limit
# end, actions of one to three tokens, some cut by the context limit, shares that do not divide the batch, and two
# optimizer steps an iteration.
SETTINGS: dict[str, Any] = {
    "run": {"name": "whole", "seed": 1, "iterations": 3, "mode": "sync", "runtime": "in_process"},
    "model": {
        "tiny": {
            "hidden": 32,
            "layers": 2,
            "heads": 4,
            "kv_heads": 2,
            "head_dim": 8,
            "intermediate": 48,
            "max_length": 128,
            "initializer_range": 0.2,
        }
    },
    "domains": {
        "frozen_lake": {
            "env": "frozen_lake",
            "args": {"size": [3, 4]},
            "max_turns": 5,
            "max_context": 64,
            "max_new_tokens": 1,
        },
        "guess_number": {
            "env": "guess_number",
            "args": {"span": [4, 6]},
            "max_turns": 3,
            "max_context": 64,
            "max_new_tokens": 1,
            "truncated": "mask",
        },
        "math_tool": {
            "env": "math_tool",
            "args": {},
            "max_turns": 3,
            "max_context": 11,
            "max_new_tokens": 3,
            "weight": 2.0,
        },
    },
    "rollout": {"groups_per_batch": 5, "group_size": 3},
    "engine": {"deterministic": True, "max_rows": 8, "max_sessions": 64},
    "training": {"learning_rate": 0.01, "minibatches": 2},
    "weights": {"bucket_bytes": 1 << 16},
    "pools": {POOL: {"devices": 16}},
}

MakeConfig = Callable[..., Config]


def merged(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """``base`` with ``changes`` in it, section by section; ``None`` leaves a key out."""
    result = deepcopy(base)
    for key, value in changes.items():
        old = result.get(key)
        result[key] = merged(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return {key: value for key, value in result.items() if value is not None}


@pytest.fixture(scope="session")
def make_config() -> MakeConfig:
    """``make_config(delays=None, **changes)``: the settings above with changes, by section.

    ``delays`` is a seed: every ``reset`` and ``step`` then takes up to 10 ms more.
    """

    def make(delays: int | None = None, **changes: Any) -> Config:
        settings = merged(SETTINGS, changes)
        if delays is not None:
            for domain in settings["domains"].values():
                domain["args"] = {"env": domain["env"], "delays": delays, "longest": 0.01, "args": domain["args"]}
                domain.update(env="delayed_env:Delayed", isolation="inline")
        return Config.model_validate(settings)

    return make


@pytest.fixture(scope="session")
def plain(make_config: MakeConfig, tmp_path_factory: pytest.TempPathFactory) -> plain_sync_loop.PlainRun:
    """What the plain synchronous loop makes of the settings."""
    return plain_sync_loop.run(make_config(), tmp_path_factory.mktemp("plain"))
