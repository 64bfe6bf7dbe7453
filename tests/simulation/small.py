"""A simulated run of a few GPUs that takes less than a second."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rollart.config.load import simulated_config
from rollart.config.simulation import SimulatedConfig

BASE: dict[str, Any] = {
    "run": {"name": "small", "iterations": 5, "mode": "rollart", "seed": 0},
    "rollout": {"groups_per_batch": 4, "group_size": 4, "max_environments": 48},
    "engine": {"devices": 1, "max_rows": 64, "max_sessions": 256, "answer_timeout": 14400},
    "training": {"devices": 4, "checkpoint": {"every": 0}},
    "placement": {"train": "train", "generate": ["h800", "h20"], "environment": "hosts"},
    "pools": {
        "train": {"hardware": "H800", "devices": 4},
        "h800": {"hardware": "H800", "devices": 2},
        "h20": {"hardware": "H20", "devices": 2},
        "hosts": {"hardware": "CPU", "devices": 1},
    },
    "simulation": {
        "model": "qwen3-8b",
        "workloads": {"webshop": {"like": "webshop"}, "gem_game": {"like": "gem_game"}},
    },
}


def small(settings: dict[str, Any] | None = None) -> SimulatedConfig:
    """The run, with values by dotted key replaced."""
    return simulated_config(BASE, settings or {})


def log_of(folder: Path) -> bytes:
    """The event log's bytes, file after file."""
    return b"".join(path.read_bytes() for path in sorted((folder / "events").iterdir()))
