"""Trajectories trained per second on 2 cores, at a size that others were measured at.

A Qwen3-shaped policy of about 640,000 parameters, 128 trajectories a step in groups of 8, 4x4 frozen lakes with
one-token actions and about 4.5 turns. TRL 1.16's GRPOTrainer, tuned by hand with a KV cache kept across turns,
trained about 124 trajectories/s in this setting on 2 cores of the same kind. A small entropy bonus makes the trainer
compute every trajectory, also those of groups without an advantage, which it would skip.

Run from the repository's root::

    python -m benchmarks.throughput [--iterations N]
"""

from __future__ import annotations

import argparse
import statistics
from typing import Any

from benchmarks.runs import iteration_seconds, run, spread, step_seconds
from rollart.events import TrainStepped, TrajectoryScored

SETTINGS: dict[str, Any] = {
    "run": {"name": "throughput", "alpha": 1},
    "model": {
        "tiny": {"hidden": 128, "layers": 4, "heads": 4, "kv_heads": 2, "head_dim": 32, "intermediate": 288},
    },
    "domains": {
        "frozen_lake": {
            "env": "frozen_lake",
            "args": {"view": "grid", "wall_penalty": 0.0},
            "max_turns": 5,
            "max_new_tokens": 1,
            "max_context": 256,
        }
    },
    "rollout": {"groups_per_batch": 16, "group_size": 8, "max_environments": 256},
    "engine": {"max_rows": 128, "max_sessions": 512},
    "training": {"learning_rate": 1e-3, "entropy_bonus": 0.001},
}

PEER_TRAJECTORIES_PER_SECOND = 124.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--iterations", type=int, default=60)
    parser.add_argument("--skip", type=int, default=10, help="iterations of warm-up that are not counted")
    options = parser.parse_args()
    for mode in ("rollart", "sync"):
        settings = {**SETTINGS, "run": {**SETTINGS["run"], "iterations": options.iterations, "mode": mode}}
        if mode == "sync":
            settings["run"]["alpha"] = 0
        events = run(settings)
        seconds = statistics.median(iteration_seconds(events, options.skip))
        scored = [each.e for each in events if isinstance(each.e, TrajectoryScored)]
        tokens = [each.e.tokens for each in events if isinstance(each.e, TrainStepped)]
        rate = 128 / seconds
        print(
            f"{mode}: {rate:.0f} trajectories/s ({rate / PEER_TRAJECTORIES_PER_SECOND:.2f}x TRL's 124), "
            f"{statistics.mean(each.turns for each in scored):.2f} turns and "
            f"{statistics.mean(each.total_tokens for each in scored):.0f} tokens a trajectory, "
            f"{statistics.mean(tokens):.0f} trained tokens a step"
        )
        print(f"  iteration {spread(iteration_seconds(events, options.skip))}")
        print(f"  train_step {spread(step_seconds(events, 'train_step', options.skip))}")
        print(f"  get_batch wait {spread(step_seconds(events, 'get_batch', options.skip))}")


if __name__ == "__main__":
    main()
