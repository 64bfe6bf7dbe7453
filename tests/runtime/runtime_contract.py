"""The contract of a runtime: a test module inherits the class and provides the class-scoped fixture ``runtime``."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from runtime_workers import Bare, NoResult, Probe, Stopping, Unannotated, Variadic

from rollart.runtime.runtime import CallTimeout, Placement, Runtime, WorkerError, WorkerHandle, WorkerLost
from rollart.types import TrajectoryId

LONG = 60.0
"""Seconds; a deadline that only a hang reaches."""

MAX_CALLS = 8
"""Bound on calls in flight of the runtimes under test."""

_numbers = itertools.count()


def placement(worker: str = "probe") -> Placement:
    name = f"{worker}-{next(_numbers)}"
    return Placement(name, "generate", "small", "CPU", {"pool:small": 1.0}, {"ROLLART_TEST_MARK": name})


async def until_running(handle: WorkerHandle, count: int) -> None:
    """Wait until ``count`` calls of ``Probe.wait`` are running."""
    async with asyncio.timeout(LONG):
        while (await handle.call("counts", timeout=LONG))["running"] != count:  # noqa: ASYNC110 - a remote state
            await asyncio.sleep(0)


class RuntimeContract:
    """``probe`` is a worker shared by the tests of the class, ``run`` runs a coroutine on their common loop."""

    def test_calls_synchronous_and_asynchronous_methods(self, run: Any, probe: WorkerHandle) -> None:
        async def main() -> None:
            assert await probe.call("greet", "hello", timeout=LONG) == "hello probe!"
            assert await probe.call("greet", "hello", "?", 2, timeout=LONG) == "hello probe?hello probe?"
            ids = [TrajectoryId("lake", 1, 2, 3), TrajectoryId("game", 4, 5, 6)]
            assert await probe.call("ids", ids, timeout=LONG) == tuple(ids)

        run(main())

    @pytest.mark.parametrize("size", [0, 5, 300_000])
    def test_arrays_cross(self, run: Any, probe: WorkerHandle, size: int) -> None:
        values = np.arange(size, dtype=np.float32)
        assert np.array_equal(run(probe.call("double", values, timeout=LONG)), values * 2)

    def test_no_object_is_shared(self, run: Any, probe: WorkerHandle) -> None:
        mine = [1, 2]
        assert run(probe.call("mutate", mine, timeout=LONG)) == [1, 2, 99]
        assert mine == [1, 2]

    def test_many_calls_at_once(self, run: Any, probe: WorkerHandle) -> None:
        async def main() -> None:
            calls = [probe.call("greet", str(i), timeout=LONG) for i in range(100)]
            assert await asyncio.gather(*calls) == [f"{i} probe!" for i in range(100)]

        run(main())

    @pytest.mark.parametrize(
        ("how", "cause_type", "cause"),
        [
            ("key", "KeyError", "'frozen_lake'"),
            ("group", "KeyError", "'frozen_lake'"),
            ("disk", "OSError", "[Errno 28] No space left on device"),
            ("exit", "SystemExit", "the library gave up"),
        ],
    )
    def test_an_error_arrives_with_its_first_cause(
        self, run: Any, probe: WorkerHandle, how: str, cause_type: str, cause: str
    ) -> None:
        with pytest.raises(WorkerError) as caught:
            run(probe.call("fail", how, timeout=LONG))
        error = caught.value
        assert (error.cause_type, error.cause, error.method) == (cause_type, cause, "fail")
        assert "in fail" in error.remote_traceback
        for part in (probe.info.worker, "role generate", "pool small", f"host {probe.info.host}"):
            assert part in str(error)
        assert run(probe.call("greet", "still alive", timeout=LONG)) == "still alive probe!"

    def test_wrong_calls_are_refused(self, run: Any, probe: WorkerHandle) -> None:
        with pytest.raises(AttributeError, match=r"no public method 'gret'; its methods: .*greet"):
            run(probe.call("gret", timeout=LONG))
        with pytest.raises(AttributeError, match="_gate"):
            run(probe.call("_gate", timeout=LONG))
        with pytest.raises(TypeError, match=r"Probe.greet takes \(greeting, mark, times\), but got 0 arguments"):
            run(probe.call("greet", timeout=LONG))
        with pytest.raises(TypeError, match="object cannot cross a process border"):
            run(probe.call("greet", object(), timeout=LONG))
        with pytest.raises(WorkerError, match=r"ValidationError: Expected `str`, got `int`"):
            run(probe.call("greet", 3, timeout=LONG))

    def test_wrong_results_are_refused(self, run: Any, probe: WorkerHandle) -> None:
        with pytest.raises(TypeError, match=r"Probe.lie: the result is not what '->' declares"):
            run(probe.call("lie", timeout=LONG))
        with pytest.raises(WorkerError, match=r"Probe.secret: the result does not cross"):
            run(probe.call("secret", timeout=LONG))

    def test_a_call_past_its_deadline_is_cancelled(self, run: Any, probe: WorkerHandle) -> None:
        async def main() -> None:
            before = await probe.call("counts", timeout=LONG)
            with pytest.raises(CallTimeout, match=rf"{probe.info.worker} .*wait gave no answer in 0.05 s"):
                await probe.call("wait", timeout=0.05)
            await until_running(probe, 0)
            after = await probe.call("counts", timeout=LONG)
            # It may have been so slow to start that it was cancelled before it began.
            assert after["cancelled"] - before["cancelled"] in (0, 1)

        run(main())

    def test_cancelling_the_caller_cancels_the_method_and_not_the_worker(self, run: Any, probe: WorkerHandle) -> None:
        async def main() -> None:
            before = await probe.call("counts", timeout=LONG)
            call = asyncio.create_task(probe.call("wait", timeout=LONG))
            await until_running(probe, 1)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            await until_running(probe, 0)
            after = await probe.call("counts", timeout=LONG)
            assert after["cancelled"] == before["cancelled"] + 1

        run(main())

    def test_calls_in_flight_are_bounded(self, run: Any, probe: WorkerHandle) -> None:
        async def main() -> None:
            await asyncio.gather(*(probe.call("pause", timeout=LONG) for _ in range(4 * MAX_CALLS)))
            assert 1 < (await probe.call("counts", timeout=LONG))["peak"] <= MAX_CALLS

        run(main())

    def test_a_call_that_never_gets_its_turn_says_so(self, run: Any, probe: WorkerHandle) -> None:
        async def main() -> None:
            calls = [asyncio.create_task(probe.call("wait", timeout=LONG)) for _ in range(MAX_CALLS)]
            await asyncio.sleep(0)  # all of them are in flight
            with pytest.raises(CallTimeout, match=f"waiting for one of {MAX_CALLS} calls in flight"):
                await probe.call("counts", timeout=0.05)
            for call in calls:
                call.cancel()
            await asyncio.gather(*calls, return_exceptions=True)
            await until_running(probe, 0)

        run(main())

    def test_a_killed_worker_is_lost(self, run: Any, runtime: Runtime) -> None:
        async def main() -> None:
            handle = await runtime.spawn(Probe, placement(), ("doomed",), LONG)
            calls = [asyncio.create_task(handle.call("wait", timeout=LONG)) for _ in range(3)]
            await until_running(handle, 3)
            await handle.kill()
            for call in calls:
                with pytest.raises(WorkerLost, match=rf"{handle.info.worker} \(role generate, pool small, host"):
                    await call
            with pytest.raises(WorkerLost, match="has been killed"):
                await handle.call("greet", "anyone?", timeout=LONG)
            await handle.kill()
            await handle.stop(LONG)

        run(main())

    def test_a_failing_constructor_tells_why(self, run: Any, runtime: Runtime) -> None:
        with pytest.raises(WorkerError, match=r"LookupError: x has no model folder \(in probe-\d+.__init__"):
            run(runtime.spawn(Probe, placement(), ("x", True), LONG))

    @pytest.mark.parametrize(
        ("worker_class", "message"),
        [
            (Unannotated, r"Unannotated.greet: parameter 'name' has no type annotation"),
            (NoResult, r"NoResult.greet: the result has no type annotation"),
            (Variadic, r"Variadic.greet: '\*names.*' cannot cross"),
        ],
    )
    def test_classes_without_types_are_refused(
        self, run: Any, runtime: Runtime, worker_class: type, message: str
    ) -> None:
        with pytest.raises(TypeError, match=message):
            run(runtime.spawn(worker_class, placement(), (), LONG))

    def test_a_class_without_constructor(self, run: Any, runtime: Runtime) -> None:
        with pytest.raises(TypeError, match="Bare has no constructor, but got 1 arguments"):
            run(runtime.spawn(Bare, placement(), (1,), LONG))

    @pytest.mark.parametrize("stubborn", [False, True])
    def test_stop_runs_the_workers_stop_and_is_idempotent(
        self, run: Any, runtime: Runtime, tmp_path: Path, stubborn: bool
    ) -> None:
        async def main() -> None:
            note = tmp_path / "note"
            handle = await runtime.spawn(Stopping, placement(), (str(note), stubborn), LONG)
            await asyncio.gather(handle.stop(0.3), handle.stop(0.3))
            assert note.read_text() == "stopped"
            note.unlink()
            await handle.stop(0.3)
            assert not note.exists()
            with contextlib.suppress(AttributeError), pytest.raises(WorkerLost, match="has been stopped"):
                await handle.call("stop", timeout=LONG)

        run(main())
