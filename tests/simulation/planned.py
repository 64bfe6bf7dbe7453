"""A run of eight GPUs with quick workloads, for the planner: no redundancy, so that all candidates can be simulated."""

from __future__ import annotations

from typing import Any

PLANNED: dict[str, Any] = {
    "run": {"mode": "rollart"},
    "rollout": {"groups_per_batch": 4, "group_size": 2, "max_environments": 48},
    "engine": {"max_rows": 64, "answer_timeout": 14400, "deterministic": True},
    "training": {"devices": 2},
    "placement": {
        "train": "train",
        "generate": ["more", "h20"],
        "environment": "hosts",
        "affinity": {"long": "H20", "default": "H800"},
    },
    "pools": {
        "train": {"hardware": "H800", "devices": 3},
        "more": {"hardware": "H800", "devices": 3},
        "h20": {"hardware": "H20", "devices": 2},
        "hosts": {"hardware": "CPU", "devices": 1},
    },
    "simulation": {
        "model": "qwen3-8b",
        "workloads": {
            "long": {"turns": 1, "first_observation": 300, "action": {"median": 900, "sigma": 0.4, "max": 3000}},
            "many": {
                "turns": [3, 6],
                "first_observation": 2000,
                "observation": 1500,
                "action": 20,
                "step_seconds": 0.3,
            },
        },
        "reward": {"kind": "free"},
        "constants": {"train_fixed_seconds": 1.0},
    },
}
