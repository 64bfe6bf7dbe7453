"""Offloading: off the loop under real time, inline under virtual time, and never in the way of an exit."""

from __future__ import annotations

import asyncio
import contextvars
import subprocess
import sys
import threading

import pytest

from rollart.runtime.offload import MAX_THREADS, offload
from rollart.simulation import virtual_loop

VARIABLE: contextvars.ContextVar[str] = contextvars.ContextVar("VARIABLE", default="unset")


def test_it_runs_in_another_thread_with_the_callers_context() -> None:
    async def main() -> None:
        VARIABLE.set("here")
        name, value = await offload(lambda: (threading.current_thread().name, VARIABLE.get()))
        assert name.startswith("offload-")
        assert value == "here"
        assert await offload(divmod, 7, 2) == (3, 1)
        assert await offload(sorted, [1, 2], reverse=True) == [2, 1]

    asyncio.run(main())


def test_errors_reach_the_caller() -> None:
    async def main() -> None:
        with pytest.raises(ZeroDivisionError):
            await offload(lambda: 1 / 0)
        with pytest.raises(RuntimeError, match="StopIteration"):
            await offload(next, iter(()))
        with pytest.raises(SystemExit):
            await offload(sys.exit, 3)

    asyncio.run(main())


def test_the_loop_goes_on_and_a_cancelled_caller_does_not_wait() -> None:
    async def main() -> None:
        release, done = threading.Event(), threading.Event()

        def work() -> None:
            release.wait(60.0)
            done.set()

        waiting = asyncio.create_task(offload(work))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert not done.is_set()
        release.set()
        assert await offload(done.wait, 60.0), "the thread finishes its work"

    asyncio.run(main())


def test_calls_beyond_the_bound_queue() -> None:
    async def main() -> None:
        lock, release = threading.Lock(), threading.Event()
        running = peak = 0

        def work() -> None:
            nonlocal running, peak
            with lock:
                running += 1
                peak = max(peak, running)
                if running == MAX_THREADS:
                    release.set()
            release.wait(60.0)
            with lock:
                running -= 1

        await asyncio.gather(*(offload(work) for _ in range(2 * MAX_THREADS)))
        assert peak == MAX_THREADS

    asyncio.run(main())


def test_it_is_inline_on_a_virtual_loop() -> None:
    async def main() -> None:
        assert await offload(threading.get_ident) == threading.get_ident()

    virtual_loop.run(main())


HANGS = """
import asyncio, threading
from rollart.runtime.offload import offload
async def main():
    hanging = asyncio.create_task(offload(threading.Event().wait))
    await asyncio.sleep(0)
    print("leaving", flush=True)
asyncio.run(main())
"""


def test_a_call_that_hangs_does_not_keep_the_program_from_exiting() -> None:
    done = subprocess.run([sys.executable, "-c", HANGS], capture_output=True, text=True, timeout=60, check=True)
    assert (done.stdout, done.stderr) == ("leaving\n", "")
