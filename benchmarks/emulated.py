"""The paper's claims about pace at this machine's size, in real time: modelled hardware, real control plane on Ray.

Run from the repository's root::

    python -m benchmarks.emulated                             # all of it, under one seed: about ten minutes
    python -m benchmarks.emulated overlap control_plane       # some of it
    python -m benchmarks.emulated --json rows.json

Engines, trainer, environments and rewards sleep by the performance model, ``--factor`` times as fast as the hardware
would be (:mod:`benchmarks.emulation`); seconds are printed as the hardware's. Two engines, one environment host and
dozens of trajectories are what two cores carry without being the bottleneck themselves; other work on the machine is
part of what is measured, so the load average is printed too.

* ``trajectory_asynchrony``: lock-step against trajectory-level interaction, step latency normal around 10 s;
* ``end_to_end``: step time of every mode, and beside it that of the same configuration in virtual time (agreement);
* ``overlap``: iteration of ``rollart`` over max(T_rollout, T_train) of a ``sync`` run, filling and draining left out;
* ``control_plane``: CPU of the driver's process for each turn, at growing numbers of trajectories.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.emulation import Emulated, emulate, ray_cluster
from rollart.config.load import simulated_config
from rollart.runtime.ray_cluster import RayCluster

Row = dict[str, Any]

FACTOR = 50.0
"""Modelled seconds in one second: a step of 10 s takes 0.2 s, and a message there and back some milliseconds."""

POOLS = {"train": 8, "rollout": 2, "hosts": 1}

BASE: Row = {
    "run": {"name": "emulated", "iterations": 7},
    "rollout": {"groups_per_batch": 4, "group_size": 8, "max_environments": 64},
    "engine": {"devices": 1, "max_rows": 256, "max_sessions": 2048, "answer_timeout": 14400},
    "training": {"devices": POOLS["train"], "checkpoint": {"every": 0}},
    "log": {"turns": True, "utilisation_seconds": 20},
    "placement": {"train": "train", "generate": ["rollout"], "environment": "hosts"},
    "pools": {
        "train": {"hardware": "H800", "devices": POOLS["train"]},
        "rollout": {"hardware": "H800", "devices": POOLS["rollout"]},
        "hosts": {"hardware": "CPU", "devices": POOLS["hosts"]},
    },
    "simulation": {
        "model": "qwen3-8b",
        "workloads": {
            "web": {
                "turns": [5, 15],
                "first_observation": 1200,
                "observation": 300,
                "action": {"median": 65, "sigma": 0.6, "max": 512},
                "step_seconds": {"median": 8, "sigma": 0.6, "max": 60},
                "reset_seconds": {"median": 10, "sigma": 0.6, "max": 120},
                "reward_seconds": {"median": 4, "sigma": 0.6, "max": 60},
            }
        },
        "network": {"same_cluster": True},
    },
}
"""Half the paper's web shop: fewer turns, slower steps, a reward that takes its time."""

WEB = "simulation.workloads.web"
TRAIN_SECONDS = "simulation.constants.train_fixed_seconds"
STORE = {"simulation.network.same_cluster": False}
"""The trainer in another cluster: weights travel through the store, as in the paper's disaggregated runs."""


SYNCHRONOUS: Row = {"run.iterations": 4}
"""No pipeline fills: the first iteration is left out, the others are alike."""


class Bench:
    """Runs configurations on one Ray cluster."""

    def __init__(self, cluster: RayCluster, factor: float, seeds: int) -> None:
        self.seeds = range(seeds)
        self._cluster = cluster
        self._factor = factor

    def play(self, settings: Mapping[str, Any], skipped: int = 2, faster: float = 1.0) -> Emulated:
        """The base configuration with these settings by dotted key."""
        config = simulated_config(BASE, settings)
        return emulate(config, self._factor * faster, self._cluster, skipped)


def trajectory_asynchrony(bench: Bench) -> list[Row]:
    """Rollout time of one batch in lock-step over that with each trajectory at its own pace, by sigma."""
    rows = []
    for sigma in (1, 3, 5, 7, 10):
        latency = {f"{WEB}.step_seconds": {"mean": 10, "std": sigma, "min": 0}, f"{WEB}.reset_seconds": 0}
        found: dict[str, list[Emulated]] = {"batch": [], "trajectory": []}
        for seed in bench.seeds:
            for interaction, runs in found.items():
                settings = {"run.mode": "sync_plus", "rollout.interaction": interaction, "run.iterations": 1}
                runs.append(bench.play(latency | settings | {"run.seed": seed, TRAIN_SECONDS: 1}, skipped=0))
        pairs = list(zip(found["batch"], found["trajectory"], strict=True))
        real = [lock.measured.rollout_s / free.measured.rollout_s for lock, free in pairs]
        virtual = [lock.simulated.rollout_s / free.simulated.rollout_s for lock, free in pairs]
        rows.append({"sigma": sigma, "ratio": real, "simulated_ratio": virtual})
        print(
            f"sigma {sigma:2} s: lock-step / trajectory-level {_spread(real)}, simulated {_spread(virtual)}", flush=True
        )
    return rows


SYSTEMS: dict[str, Row] = {
    "rollart": {"run.mode": "rollart"},
    "areal": {"run.mode": "areal"},
    "one_off": {"run.mode": "one_off"},
    "sync_plus": {"run.mode": "sync_plus", **SYNCHRONOUS},
    "sync": {"run.mode": "sync", **SYNCHRONOUS},
    "rollart by the store": {"run.mode": "rollart", **STORE},
    "areal by the store": {"run.mode": "areal", **STORE},
}
"""What is compared: every mode in one cluster, and the two whose pools the paper puts into two."""


def end_to_end(bench: Bench) -> list[Row]:
    """Step time of every mode over that of ``rollart``, and its agreement with the simulation."""
    found: dict[str, list[Emulated]] = {system: [] for system in SYSTEMS}
    for seed in bench.seeds:
        for system, runs in found.items():
            skipped = 1 if "sync" in system else 2
            runs.append(bench.play(SYSTEMS[system] | {"run.seed": seed}, skipped))
    rows = []
    for system, runs in found.items():
        steps = [run.measured.step_time_s * run.factor for run in runs]
        pairs = list(zip(runs, found["rollart"], strict=True))
        ratios = [run.measured.step_time_s / best.measured.step_time_s for run, best in pairs]
        virtual = [run.simulated.step_time_s / best.simulated.step_time_s for run, best in pairs]
        deviations = [run.deviation for run in runs]
        rows.append(
            {"system": system, "step_s": steps, "over_rollart": ratios, "simulated": virtual, "deviation": deviations}
        )
        print(
            f"{system:20} step {_spread(steps, 1)} s, over rollart {_spread(ratios)} (simulated {_spread(virtual)}), "
            f"step time off the simulation by {statistics.fmean(deviations):+.1%} "
            f"(at most {max(deviations, key=abs):+.1%})",
            flush=True,
        )
    return rows


EVEN: Row = {
    f"{WEB}.turns": [6, 10],
    f"{WEB}.step_seconds": {"median": 4, "sigma": 0.6, "max": 30},
    f"{WEB}.reset_seconds": 1,
    f"{WEB}.reward_seconds": 1,
}
"""Groups that have much the same number of turns, so that a few iterations are alike."""

OVERLAPS: dict[str, Row] = {
    "slow training": {TRAIN_SECONDS: 120},
    "balanced, slow environments": {TRAIN_SECONDS: 70},
    "balanced, slow engines": {TRAIN_SECONDS: 60, f"{WEB}.action": 400, f"{WEB}.step_seconds": 1},
    "slow rollout": {TRAIN_SECONDS: 15},
}
"""Settings for each balance of rollout and training."""

TOGETHER: dict[str, Row] = {
    "": {},
    ", weights by the store": STORE,
    ", by the store, alpha 2": STORE | {"run.alpha": 2},
}
"""How the asynchronous run is varied; the last two only where engines and training are balanced, which is hardest."""


def overlap(bench: Bench) -> list[Row]:
    """Iteration of ``rollart`` over max(T_rollout, T_train), both measured in a synchronous run."""
    rows = []
    for name, balance in OVERLAPS.items():
        settings = EVEN | balance
        alone = {
            mode: bench.play(settings | {"run.mode": mode, **SYNCHRONOUS}, skipped=1) for mode in ("sync", "sync_plus")
        }
        for how, change in TOGETHER.items():
            if not how or name == "balanced, slow engines":
                together = bench.play(settings | change | {"run.iterations": 10}, skipped=3)
                rows.append(_overlap_row(name + how, alone, together))
    return rows


def _overlap_row(name: str, alone: Mapping[str, Emulated], together: Emulated) -> Row:
    iteration = together.measured.step_time_s
    row: Row = {"balance": name, "iteration_s": iteration * together.factor}
    row["simulated_iteration_s"] = together.simulated.step_time_s * together.factor
    for mode, run in alone.items():
        # What get_batch waited, without the update at its begin.
        rollout, train = run.measured.wait_s - run.measured.exposed_update_s, run.measured.train_s
        row |= {f"{mode}_rollout_s": rollout * run.factor, f"{mode}_train_s": train * run.factor}
        row[f"over_{mode}"] = iteration / max(rollout, train)
    print(
        f"{name:46} T_train {row['sync_train_s']:5.1f} s, T_rollout {row['sync_rollout_s']:5.1f} s (sync) "
        f"{row['sync_plus_rollout_s']:5.1f} s (sync_plus); rollart {row['iteration_s']:5.1f} s (simulated "
        f"{row['simulated_iteration_s']:5.1f} s), over the larger: {row['over_sync']:.3f} and "
        f"{row['over_sync_plus']:.3f}",
        flush=True,
    )
    return row


def control_plane(bench: Bench) -> list[Row]:
    """CPU of the driver for each turn: everything in its process, from the Job to Ray's threads and the event log."""
    workload = {"turns": [5, 15], "first_observation": 200, "observation": 50, "action": 30, "step_seconds": [5, 15]}
    rows = []
    for trajectories in (64, 256, 1024):
        settings = {
            "simulation.workloads": {"web": workload},
            "rollout.groups_per_batch": trajectories // 8,
            "rollout.max_environments": trajectories,
            "engine.max_rows": 1024,
            "run.iterations": 5,
        }
        driver = bench.play(settings, faster=2.0).driver
        row = {
            "trajectories": trajectories,
            "turns_per_s": driver.turns / driver.wall,
            "calls_per_turn": driver.calls / driver.turns,
            "ms_per_turn": 1e3 * driver.cpu / driver.turns,
            "loop_ms_per_turn": 1e3 * driver.loop_cpu / driver.turns,
            "cores": driver.cpu / driver.wall,
        }
        rows.append(row)
        print(
            f"{trajectories:5} trajectories: {row['turns_per_s']:6,.0f} turns/s, {row['ms_per_turn']:.3f} ms of the "
            f"driver's CPU a turn ({row['loop_ms_per_turn']:.3f} ms in the event loop's thread), "
            f"{row['calls_per_turn']:.2f} calls a turn, {row['cores']:.2f} cores",
            flush=True,
        )
    call, own = statistics.linear_regression(
        [row["calls_per_turn"] for row in rows], [row["ms_per_turn"] for row in rows]
    )
    print(f"by a line through these: {own:.3f} ms for each turn and {call:.3f} ms for each call over Ray", flush=True)
    return [*rows, {"ms_per_turn_without_calls": own, "ms_per_call": call}]


MEASUREMENTS: dict[str, Callable[[Bench], list[Row]]] = {
    measure.__name__: measure for measure in (trajectory_asynchrony, end_to_end, overlap, control_plane)
}


def _spread(values: Sequence[float], digits: int = 2) -> str:
    """Mean, and the range if there are several."""
    mean = f"{statistics.fmean(values):.{digits}f}"
    return f"{mean} ({min(values):.{digits}f} - {max(values):.{digits}f})" if len(values) > 1 else mean


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", metavar="MEASUREMENT", help=", ".join(MEASUREMENTS))
    parser.add_argument("--seeds", type=int, default=1, help="of trajectory_asynchrony and end_to_end (default 1)")
    parser.add_argument("--factor", type=float, default=FACTOR, help=f"modelled seconds in one (default {FACTOR:g})")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the rows to FILE")
    options = parser.parse_args()
    unknown = [name for name in options.what if name not in MEASUREMENTS]
    if unknown or options.seeds < 1:
        parser.error(f"measurements: {', '.join(MEASUREMENTS)}; --seeds takes a number of 1 or more")
    found: dict[str, list[Row]] = {}
    with ray_cluster(POOLS) as cluster:
        bench = Bench(cluster, options.factor, options.seeds)
        for name in options.what or MEASUREMENTS:
            print(f"{name} (load average {os.getloadavg()[0]:.1f})", flush=True)
            found[name] = MEASUREMENTS[name](bench)
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
