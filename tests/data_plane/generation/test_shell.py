"""The asyncio shell: failures, weights in the background, and stopping, over a core made for the tests."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import msgspec
import numpy as np
import pytest
from engine_client import DEADLINE, Client, Episode
from torch_bench import TorchBench, qwen3

from rollart.data_plane.generation.emulated import EmulatedCore, EmulatedLengths, EmulatedSpeed
from rollart.data_plane.generation.shell import EngineFailed, EngineShell
from rollart.data_plane.weights.layout import version_checksum
from rollart.data_plane.weights.shared_memory import SharedMemoryReader
from rollart.data_plane.weights.store import Manifest, WeightReader, WeightStoreError
from rollart.simulation import virtual_loop
from rollart.types import EngineAddress, LengthSpan, SamplingParams


class Failing(EmulatedCore):
    """Fails at its second step."""

    def step(self) -> float:
        if self.stats().steps:
            raise MemoryError("no room for activations")
        return super().step()


def core(kind: type[EmulatedCore] = EmulatedCore) -> EmulatedCore:
    speed = EmulatedSpeed(step_seconds=0.1, prefill_token_seconds=0.01)
    return kind(EngineAddress(0), 0, speed, EmulatedLengths(mean=20, spread=0), max_rows=4, max_sessions=4)


def manifest(version: int) -> Manifest:
    return Manifest(version, (), (), 0, f"checksum-{version}")


def test_a_core_that_raises_fails_every_call_with_the_first_cause() -> None:
    async def main() -> None:
        engine = EngineShell(lambda: core(Failing))
        await engine.start()
        engine.submit([Episode(number).request(LengthSpan(5), SamplingParams(3 + number)) for number in range(2)])
        with pytest.raises(EngineFailed, match="MemoryError: no room for activations"):
            await engine.results(DEADLINE)
        with pytest.raises(EngineFailed):
            await engine.results(0.0)
        with pytest.raises(EngineFailed):
            await engine.suspend()
        with pytest.raises(EngineFailed):
            engine.submit([])
        await engine.stop()

    virtual_loop.run(main())


def test_a_model_that_cannot_be_built_fails_the_start() -> None:
    def build() -> EmulatedCore:
        raise ValueError("model folder /nowhere not found")

    async def main() -> None:
        engine = EngineShell(build)
        with pytest.raises(ValueError, match="/nowhere"):
            await engine.start()
        with pytest.raises(RuntimeError, match="not been started"):
            engine.stats()
        await engine.stop()

    virtual_loop.run(main())


def test_prefetched_versions_are_bounded_and_older_ones_dropped() -> None:
    async def main() -> None:
        engine = EngineShell(core)
        await engine.start()
        for version in (1, 2, 3):
            await engine.prefetch(manifest(version))
        await engine.suspend()
        with pytest.raises(RuntimeError, match=r"version 1: it was not prefetched \(staged: 2, 3\)"):
            await engine.update(1)
        assert (await engine.update(3)).checksum == "checksum-3"
        await engine.prefetch(manifest(3))
        assert (await engine.update(3)).version == 3
        await engine.resume()
        await engine.stop()

    virtual_loop.run(main())


class Slow(WeightReader):
    """Pulls only when it is let."""

    def __init__(self, reader: WeightReader) -> None:
        self._reader = reader
        self.let = threading.Event()

    def pull(self, manifest: Manifest) -> np.ndarray:
        assert self.let.wait(DEADLINE)
        return self._reader.pull(manifest)


def test_prefetch_runs_beside_generation_and_damage_is_reported(tmp_path: Path) -> None:
    bench = TorchBench(qwen3, tmp_path)
    wanted = bench.manifest(1)
    reader = Slow(SharedMemoryReader("bench", tmp_path, tmp_path))

    async def main() -> None:
        engine = EngineShell(lambda: bench.core(), reader)
        await engine.start()
        client = Client(engine)
        prefetch = asyncio.create_task(engine.prefetch(wanted))
        await client.one(Episode(0).request(bench.span(6), SamplingParams(10)))
        assert not prefetch.done()
        reader.let.set()
        await prefetch
        buckets = (msgspec.structs.replace(wanted.buckets[0], checksum="0" * 16), *wanted.buckets[1:])
        checksum = version_checksum(bucket.checksum for bucket in buckets)
        damaged = msgspec.structs.replace(wanted, version=2, buckets=buckets, checksum=checksum)
        with pytest.raises(WeightStoreError, match="damaged"):
            await engine.prefetch(damaged)
        await engine.suspend()
        assert (await engine.update(1)).checksum == wanted.checksum
        await engine.resume()
        answer = await client.one(Episode(1).request(bench.span(6), SamplingParams(4)))
        assert [run.version for run in answer.versions] == [1]
        await engine.stop()

    asyncio.run(main())
    bench.close()


def test_an_update_that_does_not_fit_leaves_the_old_weights(tmp_path: Path) -> None:
    class Short(WeightReader):
        """Gives fewer bytes than the manifest says."""

        def __init__(self, reader: WeightReader) -> None:
            self._reader = reader

        def pull(self, manifest: Manifest) -> np.ndarray:
            return self._reader.pull(manifest)[:-1]

    bench = TorchBench(qwen3, tmp_path)
    wanted = bench.manifest(1)
    reader = Short(SharedMemoryReader("bench", tmp_path, tmp_path))

    async def main() -> None:
        engine = EngineShell(lambda: bench.core(), reader)
        before = await engine.start()
        await engine.prefetch(wanted)
        await engine.suspend()
        with pytest.raises(ValueError, match="version 1: got uint8"):
            await engine.update(1)
        assert await engine.start() == before
        await engine.resume()
        answer = await Client(engine).one(Episode(0).request(bench.span(6), SamplingParams(4)))
        assert [run.version for run in answer.versions] == [0]
        await engine.stop()

    asyncio.run(main())
    bench.close()


def test_stopping_ends_a_long_wait() -> None:
    async def main() -> None:
        engine = EngineShell(core)
        await engine.start()
        engine.submit([Episode(0).request(LengthSpan(5), SamplingParams(50))])
        poll = asyncio.create_task(engine.results(DEADLINE))
        await asyncio.sleep(0.5)
        await engine.stop()
        assert await poll == []
        await engine.stop()
        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert asyncio.get_running_loop().time() < 1.0

    virtual_loop.run(main())
