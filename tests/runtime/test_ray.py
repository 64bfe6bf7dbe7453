"""The Ray runtime: the contract, real processes that die, and what the worker processes hold."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from runtime_contract import LONG, MAX_CALLS, RuntimeContract, placement, until_running
from runtime_workers import DiesInConstructor, Probe

from rollart.runtime.processes import alive, process
from rollart.runtime.ray import RayRuntime
from rollart.runtime.ray_cluster import RayCluster
from rollart.runtime.runtime import CallTimeout, Placement, PlacementError, WorkerHandle, WorkerLost

pytestmark = pytest.mark.ray


@pytest.fixture(scope="class")
def runtime(ray_cluster: RayCluster, runner: asyncio.Runner) -> Iterator[RayRuntime]:
    """A runtime on the shared cluster; its ``stop`` ends its workers and leaves the cluster to the others."""
    runtime = RayRuntime(ray_cluster, MAX_CALLS, keep_cluster=True)
    yield runtime
    runner.run(runtime.stop())


class TestRay(RuntimeContract):
    """The contract on Ray, and what only processes can show."""

    def test_a_worker_whose_process_is_killed_is_lost(self, run: Any, runtime: RayRuntime) -> None:
        async def main() -> None:
            handle = await runtime.spawn(Probe, placement(), ("doomed",), LONG)
            call = asyncio.create_task(handle.call("wait", timeout=LONG))
            await until_running(handle, 1)
            os.kill(handle.info.pid, signal.SIGKILL)
            with pytest.raises(WorkerLost, match=rf"{handle.info.worker} \(role generate, .* pid {handle.info.pid}\)"):
                await call
            with pytest.raises(WorkerLost):
                await handle.call("greet", "anyone?", timeout=LONG)

        run(main())

    def test_relative_paths_are_the_callers(
        self, run: Any, runtime: RayRuntime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)

        async def main() -> str:
            handle = await runtime.spawn(Probe, placement(), ("elsewhere",), LONG)
            folder: str = await handle.call("folder", timeout=LONG)
            return folder

        assert run(main()) == str(tmp_path)

    def test_a_worker_that_exits_leaves_its_last_words(self, run: Any, runtime: RayRuntime) -> None:
        async def main() -> None:
            handle = await runtime.spawn(Probe, placement(), ("doomed",), LONG)
            with pytest.raises(WorkerLost, match="out of memory: giving up"):
                await handle.call("die", timeout=LONG)

        run(main())

    def test_a_constructor_that_ends_the_process(self, run: Any, runtime: RayRuntime) -> None:
        with pytest.raises(PlacementError, match=r"worker probe-\d+ .* died while starting"):
            run(runtime.spawn(DiesInConstructor, placement(), (), LONG))

    def test_a_frozen_process_does_not_hold_up_the_caller(self, run: Any, runtime: RayRuntime) -> None:
        async def main() -> None:
            handle = await runtime.spawn(Probe, placement(), ("frozen",), LONG)
            own = process(handle.info.pid)
            assert own is not None
            os.kill(own.pid, signal.SIGSTOP)
            with pytest.raises(CallTimeout):
                await handle.call("greet", "anyone?", timeout=0.2)
            await handle.stop(0.2)
            assert not alive({own})

        run(main())

    def test_kill_takes_the_workers_children_along(self, run: Any, runtime: RayRuntime) -> None:
        async def main() -> None:
            handle = await runtime.spawn(Probe, placement(), ("parent",), LONG)
            child = process(await handle.call("start_child", timeout=LONG))
            own = process(handle.info.pid)
            assert child is not None
            assert own is not None
            await handle.kill()
            assert not alive({child, own})

        run(main())

    def test_infeasible_placements_are_refused_at_once(self, run: Any, runtime: RayRuntime) -> None:
        for resources in ({"pool:h800": 1.0}, {"pool:small": 1000.0}):
            wanted = Placement("train-0", "train", "h800", "H800", resources)
            with pytest.raises(
                PlacementError, match=r"train-0 \(role train\) needs .* cluster has .*pools.h800.devices"
            ):
                run(runtime.spawn(Probe, wanted, ("x",), LONG))

    def test_a_full_pool_gives_up_at_the_deadline(self, run: Any, runtime: RayRuntime) -> None:
        async def main() -> None:
            wanted = Placement("a", "train", "single", "CPU", {"pool:single": 1.0})
            first = await runtime.spawn(Probe, wanted, ("first",), LONG)
            with pytest.raises(PlacementError, match=r"not placed in 0.5 s \(pool:single: 1 needed, 0 of 1 free\)"):
                await runtime.spawn(Probe, wanted, ("second",), 0.5)
            await first.kill()
            third = await runtime.spawn(Probe, wanted, ("third",), LONG)
            await third.kill()

        run(main())

    def test_worker_processes_are_light(self, run: Any, probe: WorkerHandle) -> None:
        modules = set(run(probe.call("modules", timeout=LONG)))
        assert "ray" in modules
        assert not modules & {"torch", "transformers", "pandas", "pyarrow"}
        assert run(probe.call("variable", "OMP_NUM_THREADS", timeout=LONG)) == "1"

    def test_the_placements_environment_reaches_the_process(self, run: Any, probe: WorkerHandle) -> None:
        assert run(probe.call("variable", "ROLLART_TEST_MARK", timeout=LONG)) == probe.info.worker

    def test_classes_that_no_other_process_can_import_are_refused(self, run: Any, runtime: RayRuntime) -> None:
        class Local:
            pass

        with pytest.raises(TypeError, match="defined in a function"):
            run(runtime.spawn(Local, placement(), (), LONG))
