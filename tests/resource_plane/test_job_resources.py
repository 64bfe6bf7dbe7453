"""Runs that share a cluster see what the others hold of its pools, and give theirs back."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rollart.config.resources import PoolConfig
from rollart.events import Alarm, MemorySink
from rollart.resource_plane.binding import WorkerRequest
from rollart.resource_plane.job_resources import STORE_PLACE, job_resources
from rollart.resource_plane.metadata_store import HostedStore, MemoryStore
from rollart.resource_plane.pools import PlanError, pools_of
from rollart.resource_plane.resource_manager import LEASE_SECONDS
from rollart.runtime.in_process import InProcessRuntime
from rollart.runtime.ray import RayRuntime
from rollart.runtime.ray_cluster import RayCluster
from rollart.runtime.runtime import Placement, WorkerHandle
from rollart.simulation import virtual_loop

POOLS = pools_of({"local": PoolConfig(devices=4)})
THREE = [WorkerRequest(f"environment-{index}", "environment", "CPU") for index in range(3)]


class Shared:
    """Attaches all runs to one store of this process."""

    def __init__(self) -> None:
        self.runtime = InProcessRuntime()
        self.handle: WorkerHandle | None = None

    async def attach(self, worker_class: type, placement: Placement, args: tuple[Any, ...], deadline: float) -> Any:
        if self.handle is None:
            self.handle = await self.runtime.spawn(worker_class, placement, args, deadline)
        return self.handle


def test_a_run_sees_what_another_holds_for_as_long_as_that_lasts() -> None:
    async def main() -> None:
        shared = Shared()
        async with job_resources("two", MemorySink(), shared.attach) as two:
            async with job_resources("one", MemorySink(), shared.attach) as one:
                for manager in (one, two):
                    await manager.declare(POOLS)
                await one.bind(THREE)
                assert set((await two.view())["local"].holders.values()) == {f"one/{each.worker}" for each in THREE}
                await asyncio.sleep(5 * LEASE_SECONDS)
                with pytest.raises(PlanError, match=r"local: 1 of 4 free"):
                    await two.bind(THREE)
            assert not (await two.view())["local"].holders
            await two.bind(THREE)

    virtual_loop.run(main())


def test_a_lost_store_is_an_alarm_and_ends_no_run() -> None:
    async def main() -> list[str]:
        shared, sink = Shared(), MemorySink()
        async with job_resources("one", sink, shared.attach) as manager:
            await manager.declare(POOLS)
            await manager.bind(THREE)
            assert shared.handle is not None
            await shared.handle.kill()
            await asyncio.sleep(LEASE_SECONDS)
        return [event.message for event in sink.events if isinstance(event, Alarm)]

    (message,) = virtual_loop.run(main())
    assert message.startswith("other runs no longer see what this one holds of the pools: worker metadata-store")


CONFIG = """\
run: {name: second}
domains: {lake: {env: frozen_lake}}
pools: {single: {devices: 4}}
"""


@pytest.mark.ray
@pytest.mark.timeout(200)
def test_a_second_driver_on_a_cluster_is_refused_what_the_first_holds(ray_cluster: RayCluster, tmp_path: Path) -> None:
    address = ray_cluster.ray.get_runtime_context().gcs_address
    (tmp_path / "CONFIG.yaml").write_text(CONFIG)
    command = [sys.executable, "-m", "rollart.cli.main", "train", "CONFIG.yaml", f"ray.address={address}"]

    async def first() -> str:
        runtime = RayRuntime(ray_cluster, keep_cluster=True)
        async with job_resources("first", MemorySink(), runtime.attach, 60.0) as manager:
            await manager.declare(pools_of({"single": PoolConfig(devices=4)}))
            await manager.bind(THREE)
            second = await asyncio.create_subprocess_exec(
                *command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
            )
            _, errors = await second.communicate()
            holders = (await manager.view())["single"].holders
            assert set(holders.values()) == {f"first/{each.worker}" for each in THREE}, "it left nothing behind"
        store = HostedStore(await runtime.attach(MemoryStore, STORE_PLACE, (), 60.0))
        assert await store.list("devices/") == {}
        await runtime.stop()
        return errors.decode()

    errors = asyncio.run(asyncio.wait_for(first(), 180.0))
    assert "single: 1 of 4 free" in errors
