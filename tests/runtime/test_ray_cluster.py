"""A private Ray cluster leaves nothing behind, however it ends, and nobody else can reach it."""

from __future__ import annotations

import glob
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rollart.config.resources import PoolConfig, RayConfig
from rollart.runtime.processes import Process, alive, descendants, end
from rollart.runtime.ray import RayRuntime
from rollart.runtime.ray_cluster import RayCluster
from rollart.runtime.runtime import PlacementError

pytestmark = pytest.mark.ray

LONG = 90.0

RUN = """
import asyncio, sys
sys.path.insert(0, sys.argv[1])
from runtime_workers import Probe
from rollart.config.resources import PoolConfig
from rollart.runtime.ray import RayRuntime
from rollart.runtime.runtime import Placement
try:
    runtime = RayRuntime.start({"local": PoolConfig(devices=2)})
except KeyboardInterrupt:
    sys.exit("interrupted while starting")
async def main():
    try:
        handle = await runtime.spawn(Probe, Placement("p", "train", "local", "CPU", {"pool:local": 1.0}), ("x",), 90)
        print(await handle.call("start_child", timeout=90), flush=True)
        await handle.call("wait", timeout=600)
    finally:
        await runtime.stop()
asyncio.run(main())
"""

Start = Callable[[], "subprocess.Popen[str]"]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start a program that runs a worker on a private cluster, in a process group of its own."""
    started: list[subprocess.Popen[str]] = []

    def run() -> subprocess.Popen[str]:
        command = [sys.executable, "-c", RUN, str(Path(__file__).parent)]
        pipe = subprocess.PIPE
        program = subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, start_new_session=True)
        started.append(program)
        return program

    yield run
    for program in started:
        program.kill()
        program.communicate()


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LONG
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


def folders(program: subprocess.Popen[str]) -> list[str]:
    return glob.glob(f"/tmp/ra-{program.pid}-*")


def test_ctrl_c_during_the_start_leaves_nothing(start: Start) -> None:
    program = start()
    # The metadata server, the monitor, the dashboard and the node's own process: half-way through.
    wait_for(lambda: len(descendants(program.pid)) >= 4)
    below = descendants(program.pid)
    os.killpg(program.pid, signal.SIGINT)
    _, error = program.communicate(timeout=LONG)
    assert (program.returncode, error) == (1, "interrupted while starting\n")
    assert not alive(below)
    assert not folders(program)


@pytest.mark.parametrize(
    "how", [pytest.param(signal.SIGINT, marks=pytest.mark.slow), pytest.param(signal.SIGKILL, marks=pytest.mark.slow)]
)
def test_the_end_of_the_driver_ends_all(start: Start, how: signal.Signals) -> None:
    program = start()
    assert program.stdout is not None
    child = int(program.stdout.readline())
    below: set[Process] = descendants(program.pid)
    assert child in {each.pid for each in below}
    os.killpg(program.pid, how)
    program.communicate(timeout=LONG)
    orphan = {each for each in below if each.pid == child}
    wait_for(lambda: alive(below) <= orphan)
    if how == signal.SIGINT:
        assert not alive(below)
        assert not folders(program)
    end(orphan, 0.0)  # what a worker's own children do when it is killed is up to them


def test_one_connection_a_process(ray_cluster: RayCluster) -> None:
    with pytest.raises(PlacementError, match="connected to a Ray cluster already"):
        RayRuntime.start({"local": PoolConfig()})


def test_pools_of_a_real_cluster_need_its_address() -> None:
    with pytest.raises(PlacementError, match=r"pool 'gpu' is not logical.*set ray.address, or pools.gpu.logical=true"):
        RayRuntime.start({"gpu": PoolConfig(hardware="H800", logical=False)})


JOIN = """
import os, sys
from rollart.config.resources import PoolConfig, RayConfig
from rollart.runtime.ray import RayRuntime
from rollart.runtime.runtime import PlacementError
try:
    RayRuntime.start({"local": PoolConfig(), "h800": PoolConfig(devices=8)}, RayConfig(address=sys.argv[1]))
except PlacementError as error:
    print(error)
"""


def test_joining_a_cluster_by_address(ray_cluster: RayCluster) -> None:
    assert RayConfig().address is None
    address = ray_cluster.ray.get_runtime_context().gcs_address
    assert address.startswith("127.0.0.1:"), "a private cluster listens on loopback only"
    command = [sys.executable, "-c", JOIN, address]
    joined = subprocess.run(command, capture_output=True, text=True, timeout=LONG, check=True)
    assert "has no resource 'pool:h800' for pool 'h800'" in joined.stdout, joined
    assert """ray start --resources='{"pool:h800": 8}'""" in joined.stdout


REFUSED = """
import sys
from rollart.runtime.ray_cluster import RayCluster
from rollart.runtime.runtime import PlacementError
try:
    RayCluster.connect(sys.argv[1], 2.0)
except PlacementError as error:
    print(error)
"""


@pytest.mark.slow
def test_strangers_are_refused(ray_cluster: RayCluster) -> None:
    address = ray_cluster.ray.get_runtime_context().gcs_address
    stranger = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    command = [sys.executable, "-c", REFUSED, address]
    refused = subprocess.run(command, capture_output=True, text=True, timeout=LONG, check=True, env=stranger)
    assert refused.stdout.startswith(f"no connection to a Ray cluster at {address}"), refused
