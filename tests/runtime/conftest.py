"""Makes the workers and the contract of this folder importable, here and in worker processes."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from rollart.runtime.runtime import Runtime, WorkerHandle

sys.path.insert(0, str(Path(__file__).parent))

Run = Callable[[Coroutine[Any, Any, Any]], Any]


@pytest.fixture(scope="class")
def runner() -> Iterator[asyncio.Runner]:
    """One event loop for the tests of a class, so that they can share workers."""
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(scope="class")
def probe(runtime: Runtime, runner: asyncio.Runner) -> WorkerHandle:
    """A worker shared by the tests of a class."""
    from runtime_contract import LONG, placement
    from runtime_workers import Probe

    return runner.run(runtime.spawn(Probe, placement(), ("probe",), LONG))


@pytest.fixture
def run(runner: asyncio.Runner, probe: WorkerHandle) -> Iterator[Run]:
    """Run a coroutine on the shared loop; the shared worker's gate is shut before and open afterwards."""
    from runtime_contract import LONG, until_running

    def run_it(coroutine: Coroutine[Any, Any, Any]) -> Any:
        return runner.run(asyncio.wait_for(coroutine, LONG))

    run_it(probe.call("close", timeout=LONG))
    yield run_it
    run_it(probe.call("open", timeout=LONG))
    run_it(until_running(probe, 0))
