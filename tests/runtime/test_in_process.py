"""The in-process runtime: the contract, its own ``stop``, and virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from runtime_contract import LONG, MAX_CALLS, RuntimeContract, placement
from runtime_workers import Probe, Stopping

from rollart.runtime.in_process import InProcessRuntime
from rollart.runtime.runtime import CallTimeout, PlacementError, WorkerLost
from rollart.simulation import virtual_loop


@pytest.fixture(scope="class")
def runtime(runner: asyncio.Runner) -> Iterator[InProcessRuntime]:
    runtime = InProcessRuntime(MAX_CALLS)
    yield runtime
    runner.run(runtime.stop())


class TestInProcess(RuntimeContract):
    """The contract in process."""


def test_stop_stops_all_workers(tmp_path: Path) -> None:
    async def main() -> None:
        runtime = InProcessRuntime()
        notes = [tmp_path / name for name in "ab"]
        for note in notes:
            await runtime.spawn(Stopping, placement(), (str(note), False), LONG)
        probe = await runtime.spawn(Probe, placement(), ("p",), LONG)
        waiting = asyncio.create_task(probe.call("wait", timeout=LONG))
        await asyncio.sleep(0)
        await runtime.stop()
        await runtime.stop()
        assert all(note.exists() for note in notes)
        with pytest.raises(WorkerLost):
            await waiting
        with pytest.raises(PlacementError, match="has been stopped"):
            await runtime.spawn(Probe, placement(), ("late",), LONG)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(main())


def test_deadlines_are_virtual_on_a_virtual_loop() -> None:
    async def main() -> None:
        runtime = InProcessRuntime()
        probe = await runtime.spawn(Probe, placement(), ("p",), LONG)
        with pytest.raises(CallTimeout):
            await probe.call("wait", timeout=86_400.0)
        assert asyncio.get_running_loop().time() >= 86_400.0
        await runtime.stop()

    virtual_loop.run(main())
