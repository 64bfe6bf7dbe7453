"""The emulated engine: the conformance suite's semantics in virtual time, and its model of time."""

from __future__ import annotations

import asyncio
import math
import statistics
from collections.abc import Coroutine
from typing import Any

import pytest
from engine_client import Client, Episode
from engine_conformance import Bench, EngineSemantics, Started, T

from rollart.data_plane.generation.emulated import EmulatedCore, EmulatedLengths, EmulatedSpeed
from rollart.data_plane.generation.engine import Engine
from rollart.data_plane.generation.shell import EngineShell
from rollart.data_plane.weights.store import Manifest
from rollart.simulation import virtual_loop
from rollart.types import EngineAddress, FinishReason, LengthSpan, SamplingParams

SPEED = EmulatedSpeed(step_seconds=0.0625, row_seconds=0.015625, prefill_token_seconds=0.03125)


class EmulatedBench(Bench):
    """Emulated engines; a decode step of two requests takes 3/32 s."""

    def engine(
        self,
        *,
        max_rows: int = 4,
        max_sessions: int = 8,
        max_context: int = 128,
        prefill_chunk: int = 64,
        seed: int = 0,
        version: int = 0,
    ) -> Engine:
        lengths = EmulatedLengths(mean=20, spread=0.3)
        core = EmulatedCore(
            EngineAddress(0),
            seed,
            SPEED,
            lengths,
            max_rows=max_rows,
            max_sessions=max_sessions,
            max_context=max_context,
            version=version,
        )
        return EngineShell(lambda: core)

    def manifest(self, version: int) -> Manifest:
        return Manifest(version, (), (), 0, f"checksum-{version}")

    def span(self, length: int, salt: int = 0) -> LengthSpan:
        return LengthSpan(length)

    async def generate(self, client: Client, tokens: int) -> None:
        # an emulated engine accounts for its steps when something happens, so time is all there is to wait for
        await asyncio.sleep(14 * SPEED.prefill_token_seconds + tokens * 0.09375)

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        return virtual_loop.run(main)


@pytest.fixture
def bench() -> EmulatedBench:
    return EmulatedBench()


class TestEmulatedEngine(EngineSemantics):
    """The suite's semantics."""


def test_time_is_that_of_the_steps() -> None:
    """One step of 0.0625 + 0.015625 s a row, 0.03125 s for each prompt token, and all steps of a row in one wait."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        async with Started(shell(mean=8, spread=0.0)) as client:
            answer = await client.one(Episode(0).request(LengthSpan(4), SamplingParams(100)))
            assert (len(answer.action), answer.finish_reason) == (8, FinishReason.STOP)
            assert loop.time() == pytest.approx(8 * 0.078125 + 4 * 0.03125)
            stats = client.engine.stats()
            assert (stats.steps, stats.generated_tokens, stats.prefill_tokens) == (8, 8, 4)
            assert stats.busy_seconds == pytest.approx(loop.time())
            cut = await client.one(Episode(1).request(LengthSpan(4), SamplingParams(5)))
            assert (len(cut.action), cut.finish_reason) == (5, FinishReason.LENGTH)

    virtual_loop.run(main())


def test_a_newcomer_joins_at_the_end_of_the_step_under_way() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        async with Started(shell(mean=8, spread=0.0)) as client:
            client.engine.submit([Episode(0).request(LengthSpan(0x10), SamplingParams(100))])
            first_step = 0.078125 + 16 * 0.03125
            await asyncio.sleep(first_step + 2.5 * 0.078125)
            client.engine.submit([Episode(1).request(LengthSpan(4), SamplingParams(100))])
            first, second = await client.answers(1), await client.answers(1)
            # 4 steps alone, then one with the newcomer's prompt, 3 more together, and the newcomer's last 4
            together = 0.09375
            end = first_step + 3 * 0.078125 + together + 4 * 0.03125 + 3 * together + 4 * 0.078125
            assert loop.time() == pytest.approx(end)
            assert [answer.trajectory.member for answer in (*first, *second)] == [0, 1]

    virtual_loop.run(main())


def test_an_update_in_the_middle_of_a_step_counts_whole_steps_as_old() -> None:
    async def main() -> None:
        async with Started(shell(mean=10, spread=0.0)) as client:
            engine = client.engine
            await engine.prefetch(EmulatedBench().manifest(1))
            engine.submit([Episode(0).request(LengthSpan(4), SamplingParams(100))])
            await asyncio.sleep(4 * 0.03125 + 3.5 * 0.078125)
            await engine.suspend()
            assert engine.stats().generated_tokens == 3
            await asyncio.sleep(5.0)
            report = await engine.update(1)
            assert report.started == ((Episode(0).id, 0),)
            await engine.resume()
            (answer,) = await client.answers(1)
            assert [(run.version, run.length) for run in answer.versions] == [(0, 3), (1, 7)]
            # the prompt and the three tokens are computed again
            assert engine.stats().prefill_tokens == 4 + 7

    virtual_loop.run(main())


def test_a_suspension_keeps_the_time_of_the_step_under_way() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        async with Started(shell(mean=4, spread=0.0)) as client:
            client.engine.submit([Episode(0).request(LengthSpan(4), SamplingParams(100))])
            await asyncio.sleep(4 * 0.03125 + 1.5 * 0.078125)
            await client.engine.suspend()
            await asyncio.sleep(1.0)
            await client.engine.resume()
            await client.answers(1)
            assert loop.time() == pytest.approx(1.0 + 4 * 0.03125 + 4 * 0.078125)

    virtual_loop.run(main())


def test_lengths_follow_their_distribution_and_nothing_else() -> None:
    lengths = EmulatedLengths(mean=100.0, spread=0.8)
    drawn = [lengths.draw(0, f"lake/0/0/{member}/0", 12) for member in range(3000)]
    assert statistics.mean(drawn) == pytest.approx(100, rel=0.05)
    assert statistics.median(drawn) == pytest.approx(100 * math.exp(-(0.8**2) / 2), rel=0.05)
    assert drawn[:50] == [lengths.draw(0, f"lake/0/0/{member}/0", 12) for member in range(50)]
    assert drawn[:50] != [lengths.draw(0, f"lake/0/0/{member}/0", 13) for member in range(50)]
    assert min(EmulatedLengths(mean=0.1, spread=2.0).draw(0, "x", length) for length in range(100)) == 1


def test_work_is_for_each_request_not_for_each_token() -> None:
    core = emulated_core(mean=100_000, spread=0.0, max_context=1 << 20)
    for member in range(4):
        core.add(Episode(member).request(LengthSpan(9), SamplingParams(1 << 19)))
    seconds = core.step()
    assert seconds == pytest.approx(100_000 * 0.125 + 4 * 9 * 0.03125)
    assert [len(answer.action) for answer in core.settle(seconds)] == [100_000] * 4
    assert not core.has_work


def test_a_step_without_duration_is_refused() -> None:
    with pytest.raises(ValueError, match="step_seconds must be positive"):
        EmulatedCore(EngineAddress(0), 0, EmulatedSpeed(step_seconds=0.0), EmulatedLengths())


def emulated_core(mean: float, spread: float, max_context: int = 128) -> EmulatedCore:
    lengths = EmulatedLengths(mean=mean, spread=spread)
    return EmulatedCore(EngineAddress(0), 0, SPEED, lengths, max_rows=4, max_sessions=8, max_context=max_context)


def shell(mean: float, spread: float) -> EngineShell:
    return EngineShell(lambda: emulated_core(mean, spread))
