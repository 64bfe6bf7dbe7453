"""Reward capacity in virtual time: cold starts, order, limits, cancellation, and what is counted."""

import asyncio
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollart.config.simulation import RewardCapacityConfig
from rollart.simulation.serverless import RewardCapacity, RewardStats, merged
from rollart.simulation.virtual_loop import run


def play(calls, until=None, part=0, parts=1, **shape):
    """Ends of the calls ``(begin, seconds[, cancelled at])`` and the statistics when the last has ended."""

    async def main():
        loop = asyncio.get_running_loop()
        config = RewardCapacityConfig.model_validate({"overhead": 0, "cold_start": 2, "keep_alive": 10} | shape)
        capacity = RewardCapacity(config, part, parts)
        source = random.Random(0)

        async def one(begin, seconds):
            await asyncio.sleep(begin)
            await capacity.call(seconds, source)
            return loop.time()

        tasks = [asyncio.create_task(one(begin, seconds)) for begin, seconds, *_ in calls]
        for task, (_, _, *cancelled) in zip(tasks, calls, strict=True):
            for moment in cancelled:
                loop.call_later(moment, task.cancel)
        ends = await asyncio.gather(*tasks, return_exceptions=True)
        if until is not None:
            await asyncio.sleep(until - loop.time())
        return [None if isinstance(end, asyncio.CancelledError) else end for end in ends], capacity.stats(loop.time())

    return run(main())


def test_scales_from_zero_and_back():
    ends, stats = play([(0, 3), (4, 3), (20, 3)], until=40, concurrency=5)
    # Started at 0 and ready at 2; reused at 5 by the second call; gone at 18, so that the third starts another one.
    assert ends == [5, 8, 25]
    assert stats == RewardStats(
        kind="serverless",
        calls=3,
        waited=3,
        wait_seconds=2 + 1 + 2,
        cold_starts=3,
        busy_seconds=9,
        # The second call asked for an instance of its own, which was ready at 6 and found nothing to do until 16.
        provisioned_seconds=18 + 12 + 15,
        peak_instances=2,
        cost=pytest.approx(45 / 3600 * 0.05),
    )
    assert stats.utilisation == pytest.approx(9 / 45)


def test_never_more_instances_than_allowed():
    ends, stats = play([(0, 10)] * 5, concurrency=2)
    assert ends == [12, 12, 22, 22, 32]
    assert (stats.cold_starts, stats.peak_instances, stats.waited) == (2, 2, 5)


def test_an_instance_works_on_several_calls():
    ends, stats = play([(0, 10)] * 5, concurrency=1, calls_per_instance=3)
    assert ends == [12, 12, 12, 22, 22]
    assert (stats.cold_starts, stats.busy_seconds) == (1, 20)


def test_dedicated_replicas_are_provisioned_whether_used_or_not():
    ends, stats = play([(0, 4), (0, 4), (0, 4), (50, 4)], until=100, kind="dedicated", replicas=2, hardware="H800")
    assert ends == [4, 4, 8, 54]
    assert (stats.cold_starts, stats.busy_seconds, stats.provisioned_seconds) == (0, 16, 200)
    assert stats.cost == pytest.approx(200 / 3600 * 2.85)


def test_free_capacity_never_waits():
    ends, stats = play([(0, 4)] * 100, kind="free")
    assert ends == [4] * 100
    assert (stats.waited, stats.busy_seconds, stats.provisioned_seconds, stats.cost) == (0, 400, 400, 0)


def test_the_overhead_holds_no_instance():
    ends, stats = play([(0, 3), (0, 3)], kind="dedicated", replicas=1, overhead=5)
    assert ends == [8, 11]
    assert stats.busy_seconds == 6


def test_cancelled_calls_give_their_places_back():
    # The first is cancelled at work, the second while it waits; the third is next at once.
    ends, stats = play([(0, 10, 3), (1, 10, 2), (1, 10)], kind="dedicated", replicas=1)
    assert ends == [None, None, 13]
    assert stats.busy_seconds == 13
    # The one that waits for the cold start is cancelled: the instance serves the next.
    ends, stats = play([(0, 10, 1), (1.5, 10)], concurrency=1)
    assert ends == [None, 12]
    assert stats.cold_starts == 1


def test_a_call_cancelled_in_the_moment_it_gets_an_instance():
    async def main():
        capacity = RewardCapacity(RewardCapacityConfig(kind="dedicated", replicas=1, overhead=0))
        source = random.Random(0)
        first = asyncio.create_task(capacity.call(5, source))
        await asyncio.sleep(0)
        second = asyncio.create_task(capacity.call(5, source))
        # In the same turn of the loop in which the first hands its instance on, hence before the second goes on.
        loop = asyncio.get_running_loop()
        loop.call_at(5, lambda: loop.call_soon(second.cancel))
        third = asyncio.create_task(capacity.call(5, source))
        await asyncio.wait([first, second, third])
        return second.cancelled(), loop.time()

    assert run(main()) == (True, 10)


def test_hosts_share_the_capacity():
    stats = [play([(0, 1)] * 20, part=part, parts=3, concurrency=7)[1] for part in range(3)]
    assert [each.peak_instances for each in stats] == [3, 2, 2]
    whole = merged(stats)
    assert (whole.calls, whole.peak_instances, whole.busy_seconds) == (60, 7, 60)
    with pytest.raises(ValueError, match="cannot be shared by 8 hosts"):
        play([], part=7, parts=8, concurrency=7)
    with pytest.raises(ValueError, match="host"):
        merged([])


def test_an_unknown_class_is_refused():
    with pytest.raises(ValueError, match="did you mean 'H800'"):
        play([], kind="dedicated", hardware="H801")


WORK = st.tuples(st.integers(0, 30), st.integers(0, 12))
CANCELLED = st.tuples(st.integers(0, 30), st.integers(0, 12), st.integers(0, 60))


@settings(max_examples=150)
@given(
    st.lists(st.one_of(WORK, WORK, CANCELLED), max_size=25),
    st.sampled_from(["serverless", "dedicated"]),
    st.integers(1, 4),
    st.integers(1, 3),
    st.sampled_from([0, 1, [0, 6]]),
    st.sampled_from([0, 3, 50]),
)
def test_invariants(calls, kind, instances, places, cold_start, keep_alive):
    shape = {"kind": kind, "concurrency": instances, "replicas": instances, "calls_per_instance": places}
    shape |= {"cold_start": cold_start, "keep_alive": keep_alive}
    ends, stats = play(calls, **shape)
    done = [
        (begin, round(end - seconds, 6), round(end, 6))
        for (begin, seconds, *_), end in zip(calls, ends, strict=True)
        if end is not None
    ]
    assert all(len(call) == 3 for call, end in zip(calls, ends, strict=True) if end is None)
    # In order: a call that came later never begins earlier.
    for (begin, started, _), (later, started_later, _) in ((a, b) for a in done for b in done):
        assert begin <= started
        assert begin >= later or started <= started_later
    # Never more calls at work than there are places.
    for _, moment, _ in done:
        assert sum(started <= moment < end for _, started, end in done) <= instances * places
    assert stats.peak_instances <= instances
    assert 0 <= stats.busy_seconds <= stats.provisioned_seconds + 1e-9
    if places == 1 and not any(len(call) == 3 for call in calls):
        assert stats.busy_seconds == pytest.approx(sum(seconds for _, seconds in calls))
    if kind == "serverless":
        assert stats.cold_starts <= stats.waited
    assert play(calls, **shape) == (ends, stats)
