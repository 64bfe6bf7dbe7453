"""The resource manager over a store: live view, fallbacks as events, jobs that share pools, jobs that die."""

from __future__ import annotations

import asyncio

import pytest

from rollart.config.resources import PoolConfig
from rollart.events import Fallback, MemorySink
from rollart.resource_plane.binding import WorkerRequest
from rollart.resource_plane.metadata_store import LeaseExpired, MemoryStore
from rollart.resource_plane.pools import PlanError, pools_of
from rollart.resource_plane.resource_manager import LEASE_SECONDS, ResourceManager
from rollart.runtime.runtime import GPU
from rollart.simulation import virtual_loop

POOLS = pools_of(
    {
        "train": PoolConfig(hardware="H800", devices=2, logical=False),
        "rollout": PoolConfig(hardware="H20", devices=4, logical=False),
        "cpu": PoolConfig(hardware="CPU", devices=4),
    }
)


def engines(count: int) -> list[WorkerRequest]:
    return [WorkerRequest(f"generate-{i}", "generate", "H20") for i in range(count)]


def test_bind_view_release() -> None:
    async def main() -> None:
        sink = MemorySink()
        manager = ResourceManager(MemoryStore(), "job", sink)
        await manager.declare(POOLS)
        placements = await manager.bind([*engines(5), WorkerRequest("environment-0", "environment", "CPU")])
        assert [placement.pool for placement in placements] == ["rollout"] * 4 + ["train", "cpu"]
        assert placements[0].resources == {"pool:rollout": 1.0, GPU: 1.0}
        assert placements[5].resources == {"pool:cpu": 1.0}
        assert sink.events == [Fallback("generate:generate-4", "H20", "H800", "every pool of class H20 is full")]
        view = await manager.view()
        assert view["rollout"].holders == {i: f"job/generate-{i}" for i in range(4)}
        assert (await manager.bindings())["generate-4"].pool == "train"
        await manager.release("generate-1")
        await manager.release("generate-1")
        assert (await manager.view())["rollout"].free == (1,)
        await manager.release_all()
        assert all(not pool.holders for pool in (await manager.view()).values())

    virtual_loop.run(main())


def test_a_bound_worker_keeps_its_place() -> None:
    async def main() -> None:
        sink = MemorySink()
        manager = ResourceManager(MemoryStore(), "job", sink)
        await manager.declare(POOLS)
        named = WorkerRequest("train-0", "train", "H800", "rollout")
        first = await manager.bind([*engines(4), named])
        assert [placement.pool for placement in first] == ["rollout"] * 3 + ["train", "rollout"]
        assert await manager.bind([named]) == first[-1:]
        assert await manager.bind(engines(4)) == first[:-1]
        assert len(sink.events) == 1

    virtual_loop.run(main())


def test_two_jobs_never_hold_the_same_device() -> None:
    async def main() -> None:
        store = MemoryStore()
        managers = [ResourceManager(store, f"job{i}", MemorySink()) for i in range(3)]
        for manager in managers:
            await manager.declare(POOLS)
        await asyncio.gather(*(manager.bind(engines(3)) for manager in managers))
        view = await managers[0].view()
        holders = [holder for pool in view.values() for holder in pool.holders.values()]
        assert sorted(holders) == sorted(f"job{i}/generate-{k}" for i in range(3) for k in range(3))
        with pytest.raises(PlanError, match="no room"):
            await managers[0].bind([WorkerRequest(f"more-{i}", "generate", "H20") for i in range(2)])

    virtual_loop.run(main())


def test_a_dead_jobs_devices_come_back() -> None:
    async def main() -> None:
        store = MemoryStore()
        dead, alive = (ResourceManager(store, name, MemorySink()) for name in ("dead", "alive"))
        for manager in (dead, alive):
            await manager.declare(POOLS)
        await dead.bind(engines(4))
        holding = asyncio.create_task(alive.hold())
        await alive.bind(engines(4))
        await asyncio.sleep(2 * LEASE_SECONDS)
        holders = {holder for pool in (await alive.view()).values() for holder in pool.holders.values()}
        assert holders == {f"alive/generate-{i}" for i in range(4)}
        with pytest.raises(LeaseExpired):
            await dead.bind(engines(1))
        holding.cancel()

    virtual_loop.run(main())


def test_jobs_must_agree_on_a_shared_pool() -> None:
    async def main() -> None:
        store = MemoryStore()
        one = ResourceManager(store, "one", MemorySink())
        await one.declare(POOLS)
        other = pools_of({"rollout": PoolConfig(hardware="H20", devices=5, logical=False)})
        await one.bind(engines(1))
        with pytest.raises(PlanError, match=r"pools.rollout: 5 x H20, but .* with 4 x H20"):
            await ResourceManager(store, "two", MemorySink()).declare(other)

    virtual_loop.run(main())


def test_a_pool_that_nobody_holds_may_be_declared_anew() -> None:
    async def main() -> None:
        store = MemoryStore()
        one = ResourceManager(store, "one", MemorySink())
        await one.declare(POOLS)
        await one.bind(engines(1))
        await one.release_all()
        other = pools_of({"rollout": PoolConfig(hardware="H20", devices=5, logical=False)})
        two = ResourceManager(store, "two", MemorySink())
        await two.declare(other)
        assert (await two.view())["rollout"].devices == 5
        with pytest.raises(PlanError, match="6 workers need 6 devices"):  # the pools of others are not its own
            await two.bind(engines(6))

    virtual_loop.run(main())


def test_names_are_parts_of_keys() -> None:
    with pytest.raises(ValueError, match="has no '/'"):
        ResourceManager(MemoryStore(), "a/b", MemorySink())
