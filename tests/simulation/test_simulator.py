"""A simulated run placed by every runtime: its workers cross process borders, and no trajectory is lost."""

import asyncio
from collections import Counter

import pytest

from rollart.config.load import simulated_config
from rollart.events import BatchCommitted, MemorySink, RunEnded, TrajectoryEnded, TrajectoryStarted
from rollart.runtime.in_process import InProcessRuntime
from rollart.runtime.ray import RayRuntime
from rollart.simulation import virtual_loop
from rollart.simulation.simulator import SimulatedRun, simulate
from rollart.simulation.time_scale import scaled
from rollart.types import Outcome

ITERATIONS = 3
BATCH = 8


def configuration(**settings):
    data = {
        "run": {"iterations": ITERATIONS},
        "rollout": {"groups_per_batch": 4, "group_size": 2, "hosts": 2},
        "training": {"devices": 8},
        "placement": {"train": "local", "generate": "small", "environment": "local"},
        "pools": {"local": {"hardware": "H800", "devices": 12}, "small": {"hardware": "H800", "devices": 2}},
        "simulation": {
            "workloads": {
                "web": {"turns": [1, 4], "step_seconds": [1, 9], "reward_seconds": 2, "step_error": 0.05},
                "math": {"turns": 1, "action": [50, 400]},
            },
        },
    }
    return simulated_config(data, settings)


async def play(config, folder, runtime, sink):
    try:
        return await SimulatedRun(config, folder, sink=sink).play(runtime)
    finally:
        await runtime.stop()


def check_accounts(sink):
    """Every started trajectory has one outcome, and every batch was trained whole."""
    started = Counter(event.id for event in sink.events if isinstance(event, TrajectoryStarted))
    ended = Counter(event.id for event in sink.events if isinstance(event, TrajectoryEnded))
    assert started == ended
    assert set(started.values()) == {1}
    batches = [event.trajectories for event in sink.events if isinstance(event, BatchCommitted)]
    assert batches == [BATCH] * ITERATIONS
    outcomes = Counter(event.outcome for event in sink.events if isinstance(event, TrajectoryEnded))
    assert outcomes[Outcome.TRAINED] == BATCH * ITERATIONS
    assert [event.reason for event in sink.events if isinstance(event, RunEnded)] == ["finished"]


@pytest.mark.parametrize("mode", ["sync", "one_off", "areal", "rollart"])
def test_workers_cross_the_codec_and_take_the_same_virtual_time(tmp_path, mode):
    config, sink = configuration(**{"run.mode": mode}), MemorySink()
    result = virtual_loop.run(play(config, tmp_path, InProcessRuntime(), sink))
    check_accounts(sink)
    (tmp_path / "plain").mkdir()
    plain = simulate(config, tmp_path / "plain", log=False)
    assert result.measured.step_time_s == pytest.approx(plain.measured.step_time_s, rel=0.02)
    assert result.measured.train_s == pytest.approx(plain.measured.train_s, rel=0.02)


def test_an_emulation_sleeps_in_real_time(tmp_path):
    config, sink = scaled(configuration(), 400), MemorySink()
    asyncio.run(play(config, tmp_path, InProcessRuntime(), sink))
    check_accounts(sink)


@pytest.mark.ray
def test_an_emulation_on_actors(tmp_path, ray_cluster):
    config, sink = scaled(configuration(), 100), MemorySink()
    asyncio.run(play(config, tmp_path, RayRuntime(ray_cluster, keep_cluster=True), sink))
    check_accounts(sink)


def test_the_same_configuration_gives_the_same_log(tmp_path):
    logs = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        simulate(configuration(), tmp_path / name)
        logs.append((tmp_path / name / "events" / "driver.jsonl").read_bytes())
    assert logs[0] == logs[1]
