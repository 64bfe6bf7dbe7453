"""The asyncio shell around a synchronous engine core: waiting, batching of commands, weights in the background.

One task steps the core whenever there is work. Commands (ADD, ABORT, RELEASE) queue and are drained between steps;
answers go to the long poll. A core's step either has done its work when it returns (real engines) or says how long
it takes (emulated ones): the shell then sleeps that long on the loop, and a command or a suspension cuts the
sleep short. Invariants:

* the core is only called from this event loop, one call at a time;
* after ``suspend`` has returned no step runs until ``resume``;
* weights enter only while suspended, and only those of a manifest that was checked and pulled whole;
* if the core raises, every later call raises :class:`EngineFailed` with the first cause; nothing waits for it.

Who calls it: the generation Worker, on behalf of the LLMProxy.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from rollart.data_plane.generation.core import EngineCore
from rollart.data_plane.generation.engine import Engine, EngineInfo, EngineStats, UpdateReport
from rollart.data_plane.weights.store import Manifest, WeightReader
from rollart.runtime.long_poll import LongPoll
from rollart.runtime.offload import offload
from rollart.types import GenerationRequest, GenerationResult, TrajectoryId

STAGED_VERSIONS = 2
"""Prefetched versions kept besides the one in use: the one about to be taken and a newer one on its way."""

STOP_SECONDS = 30.0
"""How long ``stop`` waits for the step that is running."""


class EngineFailed(RuntimeError):
    """The engine's core raised; the message has the first cause. The engine must be restarted."""


class EngineShell(Engine):
    """See the module docstring.

    Args:
        build: Makes the core; runs in a thread, since loading a model blocks.
        reader: Where weights come from; ``None`` for cores without weights.
    """

    def __init__(self, build: Callable[[], EngineCore], reader: WeightReader | None = None) -> None:
        self._build = build
        self._reader = reader
        self._core_or_none: EngineCore | None = None
        self._task: asyncio.Task[None] | None = None
        self._commands: deque[Callable[[EngineCore], None]] = deque()
        self._answers: list[GenerationResult] = []
        self._wake = LongPoll()
        self._answered = LongPoll()
        self._suspended = False
        self._paused = asyncio.Event()
        self._stopping = False
        self._failure: BaseException | None = None
        self._staged: dict[int, tuple[Manifest, np.ndarray | None]] = {}

    async def start(self) -> EngineInfo:
        if self._core_or_none is None:
            self._core_or_none = await offload(self._build)
            self._task = asyncio.get_running_loop().create_task(self._serve(self._core_or_none))
        return self._core.info()

    def submit(self, requests: Sequence[GenerationRequest]) -> None:
        self._command([partial(_add, request) for request in requests])

    def abort(self, trajectories: Sequence[TrajectoryId]) -> None:
        self._command([partial(_abort, trajectory) for trajectory in trajectories])

    def release(self, trajectories: Sequence[TrajectoryId]) -> None:
        self._command([partial(_release, trajectory) for trajectory in trajectories])

    async def results(self, max_wait: float) -> list[GenerationResult]:
        self._raise_failure()
        await self._answered.wait(max_wait)
        self._raise_failure()
        answers, self._answers = self._answers, []
        return answers

    async def suspend(self) -> None:
        self._suspended = True
        self._wake.set()
        await self._paused.wait()
        self._raise_failure()

    async def prefetch(self, manifest: Manifest) -> None:
        core = self._core
        if manifest.version in self._staged or manifest.version == core.info().version:
            return
        core.check(manifest)
        flat = None if self._reader is None else await offload(self._reader.pull, manifest)
        self._staged[manifest.version] = (manifest, flat)
        for version in sorted(self._staged)[:-STAGED_VERSIONS]:
            del self._staged[version]

    async def update(self, version: int) -> UpdateReport:
        core = self._core
        self._raise_failure()
        if not self._suspended or not self._paused.is_set():
            raise RuntimeError(f"cannot take version {version}: the engine is not suspended")
        present = core.info().version
        if version < present:
            raise RuntimeError(f"cannot take version {version}: the engine already holds version {present}")
        loop = asyncio.get_running_loop()
        began = loop.time()
        started = core.started()
        if version > present:
            if version not in self._staged:
                raise RuntimeError(f"cannot take version {version}: it was not prefetched (staged: {self._held()})")
            manifest, flat = self._staged.pop(version)
            core.update(manifest, flat)
            self._staged = {newer: staged for newer, staged in self._staged.items() if newer > version}
        info = core.info()
        return UpdateReport(info.version, info.checksum, loop.time() - began, started, core.in_flight())

    async def resume(self) -> None:
        self._raise_failure()
        self._paused.clear()
        self._suspended = False
        self._wake.set()

    def stats(self) -> EngineStats:
        return self._core.stats()

    async def stop(self) -> None:
        self._stopping = True
        self._suspended = False
        self._wake.set()
        self._answered.set()
        if self._task is not None:
            await asyncio.wait([self._task], timeout=STOP_SECONDS)
            self._task.cancel()

    @property
    def _core(self) -> EngineCore:
        if self._core_or_none is None:
            raise RuntimeError("the engine has not been started: await start() first")
        return self._core_or_none

    def _held(self) -> str:
        return ", ".join(map(str, sorted(self._staged))) or "none"

    def _raise_failure(self) -> None:
        if self._failure is not None:
            cause = self._failure
            raise EngineFailed(f"the engine failed: {type(cause).__name__}: {cause}") from cause

    def _command(self, commands: Sequence[Callable[[EngineCore], None]]) -> None:
        self._raise_failure()
        self._commands.extend(commands)
        self._wake.set()

    async def _serve(self, core: EngineCore) -> None:
        try:
            while not self._stopping:
                await self._serve_once(core)
        except Exception as error:  # noqa: BLE001 - contained here, reported by every later call
            self._failure = error
            self._answered.set()
        finally:
            self._paused.set()

    async def _serve_once(self, core: EngineCore) -> None:
        """Drain the commands, then run a step, or wait for a reason to."""
        while self._commands:
            self._commands.popleft()(core)
        if self._suspended:
            self._deliver(core.settle(0.0))
            await self._hold()
        elif core.has_work:
            seconds = core.step()
            elapsed = await self._sleep(seconds)
            self._deliver(core.settle(elapsed))
        else:
            self._deliver(core.settle(0.0))
            await self._wake.wait()

    async def _hold(self) -> None:
        """Stay suspended until resumed or woken by commands, which may ask for answers (aborts)."""
        self._paused.set()
        await self._wake.wait()

    async def _sleep(self, seconds: float) -> float:
        """Let other tasks run; at most ``seconds``, less when woken. Returns the time that passed."""
        if seconds <= 0:
            await asyncio.sleep(0)
            return 0.0
        loop = asyncio.get_running_loop()
        began = loop.time()
        await self._wake.wait(seconds)
        return loop.time() - began

    def _deliver(self, answers: list[GenerationResult]) -> None:
        if answers:
            self._answers.extend(answers)
            self._answered.set()


def _add(request: GenerationRequest, core: EngineCore) -> None:
    core.add(request)


def _abort(trajectory: TrajectoryId, core: EngineCore) -> None:
    core.abort(trajectory)


def _release(trajectory: TrajectoryId, core: EngineCore) -> None:
    core.release(trajectory)
