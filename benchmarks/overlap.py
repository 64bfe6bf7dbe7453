"""How well rollout and training overlap: asynchronous iteration time over max(T_rollout, T_train).

T_rollout and T_train are measured in a ``sync`` run of the same configuration (``get_batch`` and
``train_step``), then the configuration runs in mode ``rollart``. 1.0 would be perfect overlap on machines that
do not disturb each other; on two cores the driver, the environments and Ray share what the engine and the
trainer leave.

Run from the repository's root::

    python -m benchmarks.overlap [CONFIG.yaml] [--iterations N]
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path

import yaml

from benchmarks.runs import iteration_seconds, merged, run, spread, step_seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", nargs="?", type=Path, default=Path("examples/quickstart.yaml"))
    parser.add_argument("--iterations", type=int, default=40)
    parser.add_argument("--skip", type=int, default=10, help="iterations of warm-up that are not counted")
    parser.add_argument("--rounds", type=int, default=1, help="sync and asynchronous runs in turn")
    options = parser.parse_args()
    settings = yaml.safe_load(options.config.read_text())
    quiet = {"run": {"iterations": options.iterations, "max_train_seconds": None}, "evaluation": {"instances": 0}}
    for _ in range(options.rounds):
        synchronous = run(merged(settings, merged(quiet, {"run": {**quiet["run"], "mode": "sync", "alpha": 0}})))
        rollout = statistics.median(step_seconds(synchronous, "get_batch", options.skip))
        train = statistics.median(step_seconds(synchronous, "train_step", options.skip))
        together = run(merged(settings, quiet))
        iteration = statistics.median(iteration_seconds(together, options.skip))
        print(f"sync:    T_rollout {rollout:.3f} s, T_train {train:.3f} s, together {rollout + train:.3f} s")
        print(f"rollart: iteration {spread(iteration_seconds(together, options.skip))}")
        print(f"         get_batch wait {spread(step_seconds(together, 'get_batch', options.skip))}")
        print(f"         train_step {spread(step_seconds(together, 'train_step', options.skip))}")
        print(f"         suspended {spread(step_seconds(together, 'update', options.skip))} an update")
        print(f"iteration / max(T_rollout, T_train) = {iteration / max(rollout, train):.2f}")
        print(f"(T_rollout + T_train) / iteration   = {(rollout + train) / iteration:.2f}")


if __name__ == "__main__":
    main()
