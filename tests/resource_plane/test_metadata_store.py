"""The metadata store: in memory in virtual time, and the same contract for one hosted by a worker."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rollart.resource_plane.metadata_store import (
    ABSENT,
    HISTORY,
    Entry,
    HostedStore,
    LeaseExpired,
    MemoryStore,
    MetadataStore,
)
from rollart.runtime.in_process import InProcessRuntime
from rollart.runtime.ray import RayRuntime
from rollart.runtime.ray_cluster import RayCluster
from rollart.runtime.runtime import Placement
from rollart.simulation import virtual_loop

PLACE = Placement("metadata", "metadata", "local", "CPU", {"pool:local": 1.0})


async def exercise(store: MetadataStore) -> None:
    """Everything that needs no passing of time."""
    assert await store.get("a/x") is None
    first = await store.put("a/x", b"1")
    assert await store.get("a/x") == Entry(b"1", first)
    assert await store.compare_and_set("a/x", b"2", ABSENT) is None
    second = await store.compare_and_set("a/x", b"2", first)
    assert second is not None
    assert second > first
    assert await store.compare_and_set("a/x", b"3", first) is None
    third = await store.compare_and_set("a/y", b"y", ABSENT)
    await store.put("b", b"other")
    assert list(await store.list("a/")) == ["a/x", "a/y"]
    seen = await store.watch("a/", first, 0.0)
    assert [(change.key, change.revision) for change in seen.changes] == [("a/x", second), ("a/y", third)]
    assert not await store.delete("a/x", first)
    assert await store.delete("a/x", second)
    assert not await store.delete("a/x")
    (gone,) = (await store.watch("a/", seen.revision, 0.0)).changes
    assert (gone.key, gone.entry) == ("a/x", None)
    lease = await store.grant(60.0)
    await store.put("leased", b"mine", lease)
    await store.keep_alive(lease)
    await store.revoke(lease)
    assert await store.get("leased") is None
    for use in (store.keep_alive(lease), store.put("c", b"", lease)):
        with pytest.raises(LeaseExpired, match="lease 1 is over"):
            await use


async def watch_wakes_up(store: MetadataStore) -> None:
    before = (await store.watch("w/", 0, 0.0)).revision
    watching = asyncio.create_task(store.watch("w/", before, 30.0))
    await asyncio.sleep(0)
    await store.put("unrelated", b"")
    await store.put("w/1", b"")
    assert [change.key for change in (await watching).changes] == ["w/1"]


async def one_of_many_wins(store: MetadataStore) -> None:
    won = await asyncio.gather(*(store.compare_and_set("race", str(i).encode(), ABSENT) for i in range(20)))
    assert sum(version is not None for version in won) == 1


CASES = [exercise, watch_wakes_up, one_of_many_wins]


@pytest.mark.parametrize("case", CASES)
def test_in_memory(case: Any) -> None:
    virtual_loop.run(case(MemoryStore()))


@pytest.mark.parametrize("case", CASES)
def test_hosted_in_process(case: Any) -> None:
    async def main() -> None:
        runtime = InProcessRuntime()
        await case(HostedStore(await runtime.spawn(MemoryStore, PLACE, (), 10.0)))
        await runtime.stop()

    virtual_loop.run(main())


@pytest.mark.ray
def test_hosted_by_a_detached_ray_actor(ray_cluster: RayCluster) -> None:
    async def main() -> None:
        runtimes = [RayRuntime(ray_cluster, keep_cluster=True) for _ in range(2)]
        mine, others = await asyncio.gather(*(each.attach(MemoryStore, PLACE, (), 60.0) for each in runtimes))
        assert mine.info.pid == others.info.pid
        for case in CASES:
            await case(HostedStore(mine))
        await mine.stop(1.0)
        await runtimes[0].stop()
        assert await HostedStore(others).get("w/1") is not None, "it outlives the runtime that created it"
        await runtimes[1].stop()

    asyncio.run(asyncio.wait_for(main(), 100.0))


def test_leases_end_when_they_are_not_kept_alive() -> None:
    async def main() -> None:
        store = MemoryStore()
        lease = await store.grant(10.0)
        await store.put("k", b"v", lease)
        before = (await store.watch("", 0, 0.0)).revision
        await asyncio.sleep(8.0)
        await store.keep_alive(lease)
        await asyncio.sleep(8.0)
        assert await store.get("k") is not None
        seen = await store.watch("k", before, 100.0)
        assert asyncio.get_running_loop().time() == pytest.approx(18.0)
        assert [change.entry for change in seen.changes] == [None]
        with pytest.raises(LeaseExpired):
            await store.keep_alive(lease)

    virtual_loop.run(main())


def test_a_key_belongs_to_the_lease_it_was_last_put_under() -> None:
    async def main() -> None:
        store = MemoryStore()
        lease = await store.grant(10.0)
        await store.put("k", b"v", lease)
        await store.put("k", b"w")
        await asyncio.sleep(20.0)
        assert (await store.get("k")) is not None

    virtual_loop.run(main())


def test_a_watch_without_changes_ends_in_time() -> None:
    async def main() -> None:
        store = MemoryStore()
        seen = await store.watch("", 0, 5.0)
        assert (seen.changes, seen.complete, asyncio.get_running_loop().time()) == ((), True, 5.0)

    virtual_loop.run(main())


def test_a_watcher_that_is_too_late_is_told_to_list() -> None:
    async def main() -> None:
        store = MemoryStore()
        for _ in range(HISTORY + 2):
            await store.put("k", b"")
        assert not (await store.watch("", 1, 0.0)).complete
        assert (await store.watch("", 2, 0.0)).complete
        assert not (await store.watch("", 10**6, 0.0)).complete, "a revision of another store"

    virtual_loop.run(main())
