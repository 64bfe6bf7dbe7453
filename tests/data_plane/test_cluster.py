"""Cluster: dispatch by declaration, all-or-none start, first causes, fallbacks as events; in process and on Ray."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rollart.config.resources import PoolConfig
from rollart.data_plane.cluster import Cluster
from rollart.data_plane.declarations import DeclarationError
from rollart.data_plane.routing import NoHealthyWorker
from rollart.data_plane.serverless import ServerlessError
from rollart.events import Fallback, MemorySink, WorkerPlaced
from rollart.resource_plane.binding import WorkerRequest
from rollart.resource_plane.metadata_store import MemoryStore
from rollart.resource_plane.pools import PlanError, pools_of
from rollart.resource_plane.resource_manager import ResourceManager
from rollart.runtime.in_process import InProcessRuntime
from rollart.runtime.ray import RayRuntime
from rollart.runtime.ray_cluster import RayCluster
from rollart.runtime.runtime import Runtime, WorkerError, WorkerLost

sys.path.insert(0, str(Path(__file__).parent / "workers"))

from cluster_workers import Clashing, Judge, Member, Unserved

POOLS = {"a": PoolConfig(hardware="H20", devices=2), "b": PoolConfig(hardware="H800", devices=1)}


class Site:
    """A runtime with two pools: two H20 and one H800."""

    def __init__(self, runtime: Runtime, pools: dict[str, PoolConfig] = POOLS) -> None:
        self.runtime = runtime
        self.sink = MemorySink()
        self.resources = ResourceManager(MemoryStore(), "job", self.sink, lease_seconds=None)
        self._pools = pools_of(pools)

    async def cluster(
        self,
        worker_class: Any = Member,
        classes: tuple[str, ...] = ("H20", "H20", "H800"),
        args: Callable[[int], tuple[Any, ...]] = lambda index: (index,),
        **options: Any,
    ) -> Cluster:
        await self.resources.declare(self._pools)
        requests = [WorkerRequest(f"w{i}", "generate", name) for i, name in enumerate(classes)]
        return await Cluster.create(
            worker_class,
            requests,
            args,
            runtime=self.runtime,
            resources=self.resources,
            sink=self.sink,
            deadline=60.0,
            **options,
        )

    async def held(self) -> int:
        return sum(len(pool.holders) for pool in (await self.resources.view()).values())


def run(main: Callable[[Site], Any]) -> None:
    async def all_of_it() -> None:
        runtime = InProcessRuntime()
        await main(Site(runtime))
        await runtime.stop()

    asyncio.run(asyncio.wait_for(all_of_it(), 60.0))


async def dispatch(site: Site) -> None:
    """The core of it, on any runtime."""
    cluster = await site.cluster()
    assert await cluster.who("worker ") == ["worker 0", "worker 1", "worker 2"]
    assert await cluster.generate("p", tag_name="frozen_lake") == (2, "p", "frozen_lake")
    assert (await cluster.generate("p", tag_name="unknown"))[0] in (0, 1)
    assert (await cluster.generate("p"))[2] == "default"
    with pytest.raises(WorkerError, match=r"RuntimeError: 1 is out of order \(in w1.who, role generate, pool a, host"):
        await cluster.who("fail-1")
    placed = [event for event in site.sink.events if isinstance(event, WorkerPlaced)]
    assert [(event.worker, event.pool, event.hardware_class) for event in placed] == [
        ("w0", "a", "H20"),
        ("w1", "a", "H20"),
        ("w2", "b", "H800"),
    ]
    assert len(placed) == len(site.sink.events), "no fallback"
    await cluster.stop(5.0)
    assert await site.held() == 0


def test_dispatch_in_process() -> None:
    run(dispatch)


@pytest.mark.ray
def test_dispatch_on_ray(ray_cluster: RayCluster) -> None:
    async def main() -> None:
        runtime = RayRuntime(ray_cluster, keep_cluster=True)
        pools = {"small": PoolConfig(hardware="H20", devices=2), "single": PoolConfig(hardware="H800", devices=1)}
        site = Site(runtime, pools)
        cluster = await site.cluster()
        assert await cluster.who() == ["0", "1", "2"]
        assert await cluster.generate("p", tag_name="frozen_lake") == (2, "p", "frozen_lake")
        await cluster.handles[2].kill()
        with pytest.raises(WorkerLost):
            await cluster.generate("p", tag_name="frozen_lake")
        assert (await cluster.generate("p", tag_name="frozen_lake"))[0] in (0, 1)
        judges = await site.cluster(Judge, ("H800",), lambda _: ())
        assert await judges.score([1, 2]) == 0.3
        await runtime.stop()

    asyncio.run(asyncio.wait_for(main(), 100.0))


def test_a_restarted_worker_takes_its_place_and_its_calls_again() -> None:
    async def main(site: Site) -> None:
        cluster = await site.cluster()
        lost = cluster.handles[2]
        await lost.kill()
        with pytest.raises(WorkerLost, match="w2"):
            await cluster.generate("p", tag_name="frozen_lake")
        assert await cluster.restart(2) is cluster.handles[2] is not lost
        assert await cluster.generate("p", tag_name="frozen_lake") == (2, "p", "frozen_lake")
        assert await cluster.within(5.0).who() == ["0", "1", "2"]
        assert cluster.handles[2].info.pool == lost.info.pool
        await cluster.stop(5.0)
        assert await site.held() == 0

    run(main)


def test_a_lost_worker_gets_no_more_calls_and_the_fallback_is_recorded_once() -> None:
    async def main(site: Site) -> None:
        cluster = await site.cluster()
        await cluster.handles[2].kill()
        with pytest.raises(WorkerLost, match="w2"):
            await cluster.generate("p", tag_name="frozen_lake")
        for _ in range(3):
            assert (await cluster.generate("p", tag_name="frozen_lake"))[0] in (0, 1)
        falls = [event for event in site.sink.events if isinstance(event, Fallback)]
        assert falls == [Fallback("generate:frozen_lake", "H800", "H20", "no worker of class H800 is healthy")]
        with pytest.raises(WorkerLost):
            await cluster.who()
        for handle in cluster.handles:
            await handle.kill()
        for _ in range(2):
            with pytest.raises(WorkerLost):
                await cluster.generate("p")
        with pytest.raises(NoHealthyWorker):
            await cluster.generate("p")

    run(main)


def test_calls_spread_over_the_workers_of_a_class() -> None:
    async def main(site: Site) -> None:
        cluster = await site.cluster()
        answers = await asyncio.gather(*(cluster.generate("p") for _ in range(10)))
        assert sorted(index for index, *_ in answers) == [0] * 5 + [1] * 5

    run(main)


def test_the_configuration_may_replace_the_declared_affinity() -> None:
    async def main(site: Site) -> None:
        cluster = await site.cluster(affinity={"math": "H800", "default": "H20"})
        assert (await cluster.generate("p", tag_name="math"))[0] == 2
        assert (await cluster.generate("p", tag_name="frozen_lake"))[0] != 2

    run(main)


def test_workers_are_started_all_or_none() -> None:
    async def main(site: Site) -> None:
        with pytest.raises(WorkerError, match=r"LookupError: worker -1 has no model \(in w1.__init__"):
            await site.cluster(args=lambda index: (index if index != 1 else -1,))
        assert await site.held() == 0
        with pytest.raises(PlanError, match="no room"):
            await site.cluster(classes=("H20",) * 4)
        assert await site.held() == 0

    run(main)


def test_only_declared_methods_are_bound() -> None:
    async def main(site: Site) -> None:
        cluster = await site.cluster()
        with pytest.raises(AttributeError, match=r"Cluster of Member has no method 'undeclared'; declared: .*generate"):
            await cluster.undeclared()
        assert await cluster.handles[0].call("undeclared", timeout=1.0) is None
        with pytest.raises(TypeError, match=r"Member.generate: missing a required argument: 'prompt'"):
            await cluster.generate()
        with pytest.raises(DeclarationError, match=r"Clashing.create: a Cluster has an attribute 'create'"):
            await site.cluster(Clashing)

    run(main)


def test_a_deadline_of_its_own() -> None:
    async def main(site: Site) -> None:
        cluster = await site.cluster()
        assert await cluster.within(5.0).who() == ["0", "1", "2"]
        with pytest.raises(TimeoutError, match="gave no answer in 0 s"):
            await cluster.within(0.0).who()

    run(main)


def test_serverless_attributes_are_awaitable_functions() -> None:
    async def main(site: Site) -> None:
        judges = await site.cluster(Judge, ("H20", "H20"), lambda _: ())
        assert await judges.score([1, 2]) == 0.3
        assert "reward_proxy" in await judges.handles[1].call("attribute", timeout=1.0)
        await judges.stop(1.0)
        judges = await site.cluster(
            Judge, ("H20",), lambda _: (), urls={"reward_proxy": "inline://cluster_workers:other_score"}
        )
        assert await judges.score([1, 2]) == -1.0
        await judges.stop(1.0)
        judges = await site.cluster(
            Judge, ("H20",), lambda _: (), urls={"reward_proxy": "inline://cluster_workers:failing_score"}
        )
        with pytest.raises(WorkerError, match=r"ConnectionError: no judge for \[1\]"):
            await judges.score([1])

    run(main)


@pytest.mark.parametrize(
    ("url", "error", "message"),
    [
        (
            "fc://judge/score",
            ServerlessError,
            r"'fc://judge/score': there is no serverless provider .* supported: inline://",
        ),
        ("inline://cluster_workers", WorkerError, "ServerlessError: .* write inline://module:function"),
        ("inline://cluster_workers:scor", WorkerError, "LookupError: .*'scor'"),
        ("inline://cluster_workers:sys", WorkerError, "is not a function|has no 'sys'"),
    ],
)
def test_urls_that_cannot_be_served_are_refused(url: str, error: type[Exception], message: str) -> None:
    async def main(site: Site) -> None:
        with pytest.raises(error, match=message):
            await site.cluster(Judge, ("H20",), lambda _: (), urls={"reward_proxy": url})
        assert await site.held() == 0
        with pytest.raises(ServerlessError, match="supported: inline://"):
            await site.cluster(Unserved, ("H20",), lambda _: ())

    run(main)
