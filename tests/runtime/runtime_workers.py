"""Worker classes of the runtime tests, at module level where a Ray process can import them."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

from rollart.types import TrajectoryId


class Probe:
    """Does one thing of each kind; counts what was cancelled."""

    def __init__(self, name: str, refuse: bool = False) -> None:
        if refuse:
            raise LookupError(f"{name} has no model folder")
        self._name = name
        self._gate = asyncio.Event()
        self._cancelled = 0
        self._running = 0
        self._pausing = 0
        self._peak = 0

    def greet(self, greeting: str, mark: str = "!", *, times: int = 1) -> str:
        return f"{greeting} {self._name}{mark}" * times

    async def ids(self, ids: list[TrajectoryId]) -> tuple[TrajectoryId, ...]:
        return tuple(ids)

    async def double(self, values: np.ndarray) -> np.ndarray:
        return values * 2

    async def mutate(self, values: list[int]) -> list[int]:
        values.append(99)
        return values

    async def fail(self, how: str) -> None:
        await asyncio.sleep(0)
        if how == "group":
            async with asyncio.TaskGroup() as group:
                group.create_task(self.fail("key"))
        if how == "exit":
            sys.exit("the library gave up")
        raise {"key": KeyError("frozen_lake"), "disk": OSError(28, "No space left on device")}[how]

    async def lie(self) -> int:
        return "not a number"  # type: ignore[return-value]

    async def secret(self) -> Any:
        return object()

    async def wait(self) -> str:
        """Wait until ``open`` is called."""
        self._running += 1
        try:
            await self._gate.wait()
        except asyncio.CancelledError:
            self._cancelled += 1
            raise
        finally:
            self._running -= 1
        return "open"

    async def pause(self) -> None:
        """Let others run; the peak of concurrent pauses is kept."""
        self._pausing += 1
        self._peak = max(self._peak, self._pausing)
        for _ in range(5):
            await asyncio.sleep(0)
        self._pausing -= 1

    def open(self) -> None:
        self._gate.set()

    def close(self) -> None:
        self._gate.clear()

    def counts(self) -> dict[str, int]:
        return {"cancelled": self._cancelled, "running": self._running, "peak": self._peak}

    async def die(self) -> None:
        print("out of memory: giving up", file=sys.stderr, flush=True)
        os._exit(3)

    def modules(self) -> list[str]:
        return sorted(sys.modules)

    def folder(self) -> str:
        return os.getcwd()

    def variable(self, name: str) -> str | None:
        return os.environ.get(name)

    async def start_child(self) -> int:
        child = await asyncio.create_subprocess_exec("sleep", "600")
        _children.append(child)
        return child.pid


_children: list[asyncio.subprocess.Process] = []
"""Keeps the child processes referenced."""


class Stopping:
    """Notes in a file that its ``stop`` ran; may refuse to stop."""

    def __init__(self, note: str, stubborn: bool) -> None:
        self._note = Path(note)
        self._stubborn = stubborn

    async def stop(self) -> None:
        self._note.write_text("stopped")
        if self._stubborn:
            await asyncio.Event().wait()


class DiesInConstructor:
    def __init__(self) -> None:
        os._exit(4)


class Bare:
    """No constructor, no methods."""


class Unannotated:
    def greet(self, name):  # type: ignore[no-untyped-def]
        return name


class NoResult:
    def greet(self, name: str):  # type: ignore[no-untyped-def]
        return name


class Variadic:
    def greet(self, *names: str) -> str:
        return "".join(names)
