"""A whole job in virtual time: emulated environments, engines and trainer around the real control plane.

``play(scenario)`` runs it and returns everything that happened; :class:`LiveJob` is driven step by step. What must be
true of either is in :mod:`invariants`.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
from invariants import breaches, unaccounted
from scenarios import Scenario, config_of
from story import Story
from weather import WEATHER, OutdoorGenerator, OutdoorLearner

from rollart.control_plane.env_host import EnvHost
from rollart.control_plane.job import Job, JobHooks, JobResult
from rollart.control_plane.job_state import JobState
from rollart.control_plane.wiring import JobWorkers
from rollart.data_plane.generation.emulated import EmulatedLengths, EmulatedSpeed
from rollart.data_plane.training.emulated import EmulatedTimes, emulated_manifest
from rollart.events import Event, PoolBusy, TurnFinished
from rollart.runtime.in_process import InProcessRuntime
from rollart.runtime.runtime import Placement, PlacementError, WorkerHandle
from rollart.simulation import virtual_loop
from rollart.types import Purpose, TrainBatch

SCRATCH = "/dev/shm" if Path("/dev/shm").is_dir() else None
"""Checkpoints of emulated runs are worth no disk."""

EVENT_LIMIT = 3_000
"""A scenario needs a few hundred, not counted the turns and what is reported again and again."""

VIRTUAL_LIMIT = 1_000.0
"""Virtual seconds after which a run counts as hanging; a scenario needs a few dozen."""

LOOK_SECONDS = 0.11
"""Virtual seconds between two looks at who holds which trajectory."""

SPEED = EmulatedSpeed(step_seconds=0.02, row_seconds=0.001)
LENGTHS = EmulatedLengths(mean=6.0, spread=0.7)


class Hang(AssertionError):
    """The run does not end although time goes on, or things happen; the message has the wait-for graph."""


class Recorder:
    """Keeps the events with their times, and checks the bounds at each of them."""

    def __init__(self, scenario: Scenario) -> None:
        self.events: list[Event] = []
        self.times: list[float] = []
        self.breaches: list[str] = []
        self.job: Job | None = None
        self._scenario = scenario
        self._alpha = scenario.switches.alpha
        self._counted = 0

    def emit(self, event: Event) -> None:
        self.events.append(event)
        self.times.append(asyncio.get_running_loop().time())
        if isinstance(event, TurnFinished | PoolBusy):
            return
        self._counted += 1
        if self._counted > EVENT_LIMIT:
            raise Hang(f"the run goes on for ever, {EVENT_LIMIT} events; who waits for whom:\n{self.wait_graph()}")
        if self.job is not None and self.job.wiring is not None:
            self.breaches += breaches(self.job.wiring, self._scenario, self._alpha)

    def wait_graph(self) -> str:
        return "nobody: the job has not begun" if self.job is None else self.job.wait_graph()


class LiveJob:
    """A job whose workers have been placed; everything that happens goes to the recorder.

    Args:
        folder: Of the checkpoints.
        batches: Each batch is added to it when it is formed.
        start: Where a resumed run goes on.
        stop_after: The user stops the run when so many iterations have been made.
    """

    def __init__(
        self,
        scenario: Scenario,
        recorder: Recorder,
        batches: list[TrainBatch],
        folder: Path,
        start: JobState,
        stop_after: int | None = None,
    ) -> None:
        self.scenario = scenario
        self._runtime = InProcessRuntime()
        self._recorder = recorder
        self._batches = batches
        self._folder = folder
        self._start = start
        self._stop_after = stop_after
        self._text = config_of(scenario).model_dump_json()
        self._workers: dict[str, WorkerHandle] = {}
        self._restarts: Counter[int] = Counter()
        self._dead: list[WorkerHandle] = []
        """Kept: in one process the episodes of a dead host play on, unheard."""
        self._beside: list[asyncio.Task[None]] = []
        """What goes on while it runs."""
        self.job: Job

    async def place(self) -> None:
        """Place the workers."""
        scenario = self.scenario
        times = EmulatedTimes(scenario.train, scenario.publish, scenario.report, 0.5)
        checksum = emulated_manifest(0).checksum
        workers = JobWorkers(
            await self._spawn(OutdoorLearner, "train-0", scenario.seed, times),
            [
                await self._spawn(
                    *(OutdoorGenerator, f"generate-{each}", self._text, each, checksum, SPEED, LENGTHS),
                    scenario.lost_answers,
                )
                for each in range(scenario.engines)
            ],
            [await self._host(number) for number in range(scenario.hosts)],
            self._restart,
        )
        hooks = JobHooks(self._batches.append, self._iteration_ended)
        config = config_of(scenario)
        self.job = Job(config, workers, {"default": "CPU"}, self._folder, self._recorder, hooks, self._start)
        self._recorder.job = self.job

    async def run(self) -> JobResult:
        """Run the job to its end.

        Raises:
            Hang: it goes on for too long.
            Exception: whatever ended it.
        """
        loop = asyncio.get_running_loop()
        self._beside = [loop.create_task(self._kill_at(*each)) for each in self.scenario.kills]
        self._beside.append(loop.create_task(self._look()))
        if self.scenario.death is not None:
            self._beside.append(loop.create_task(self._die_at(*self.scenario.death)))
        running = loop.create_task(self.job.run())
        try:
            done, _ = await asyncio.wait({running}, timeout=VIRTUAL_LIMIT)
            if not done:
                raise Hang(f"the run hangs; who waits for whom:\n{self.job.wait_graph()}")
            result = running.result()
            self._recorder.breaches += _left_over(self.job, result)
            return result
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            for each in self._beside:
                each.cancel()
            await self._runtime.stop()

    async def kill(self, number: int) -> None:
        """The process of an environment host dies, if it lives."""
        if self.job.wiring is not None:
            self._dead.append(self.job.wiring.hosts[number].handle)
            await self._dead[-1].kill()

    async def _look(self) -> None:
        """Between two turns of the loop, again and again, until something is wrong."""
        found: list[str] = []
        while not found:
            await asyncio.sleep(LOOK_SECONDS)
            if self.job.wiring is not None:
                found = unaccounted(self.job.wiring)
        self._recorder.breaches += found

    async def die(self, worker: str) -> None:
        """The process of an engine or the trainer dies, which ends the run."""
        await self._workers[worker].kill()

    async def _kill_at(self, moment: float, number: int) -> None:
        await asyncio.sleep(moment)
        await self.kill(number)

    async def _die_at(self, moment: float, worker: str) -> None:
        await asyncio.sleep(moment)
        await self.die(worker)

    async def _spawn(self, worker: type, name: str, *args: Any) -> WorkerHandle:
        handle = await self._runtime.spawn(worker, Placement(name, name, "local", "CPU"), args, 10.0)
        self._workers[name] = handle
        return handle

    async def _host(self, number: int) -> WorkerHandle:
        parts = "rollart.control_plane.domain_parts:build_parts"
        return await self._spawn(EnvHost, f"environment-{number}", parts, [self._text, ""])

    async def _restart(self, number: int) -> WorkerHandle:
        seconds, failures = self.scenario.restart
        await asyncio.sleep(seconds)
        self._restarts[number] += 1
        if self._restarts[number] % (failures + 1):
            raise PlacementError(f"environment-{number} does not start")
        return await self._host(number)

    def _iteration_ended(self, index: int) -> None:
        if index + 1 == self._stop_after:
            self.job.interrupt()


def _left_over(job: Job, result: JobResult) -> list[str]:
    """Sessions that a run which ended well has not released; a stop leaves the evaluation's to the engines' end."""
    held = [] if job.wiring is None else list(job.wiring.proxy._sticky)
    left = [id for id in held if not (result.interrupted and id.purpose is Purpose.EVAL)]
    return [f"bound: the session of {id} is left at the LLMProxy" for id in left]


def play(
    scenario: Scenario,
    run_folder: Path | None = None,
    start: JobState = JobState(),  # noqa: B008 - immutable
    stop_after: int | None = None,
) -> Story:
    """Play a scenario.

    Args:
        run_folder: Keeps the checkpoints; they are thrown away by default.
        start: Where a resumed run goes on.
        stop_after: The user stops the run when so many iterations have been made.
    """
    WEATHER.clear()
    recorder = Recorder(scenario)
    batches: list[TrainBatch] = []
    error: BaseException | None = None

    async def main(folder: Path) -> None:
        live = LiveJob(scenario, recorder, batches, folder, start, stop_after)
        await live.place()
        await live.run()

    with tempfile.TemporaryDirectory(dir=SCRATCH) as scratch:
        try:
            virtual_loop.run(main(run_folder or Path(scratch)), recorder.wait_graph)
        except Exception as raised:  # noqa: BLE001 - judged by the caller
            error = raised
    stops = int(stop_after is not None)
    return Story(scenario, recorder.events, recorder.times, batches, error, recorder.breaches, stops=stops)


def joined(first: Story, second: Story) -> Story:
    """The story of a run that was stopped and resumed."""
    later = [first.times[-1] + time for time in second.times]
    return msgspec.structs.replace(
        second,
        events=first.events + second.events,
        times=first.times + later,
        batches=first.batches + second.batches,
        breaches=first.breaches + second.breaches,
        starts=first.starts + second.starts,
        stops=first.stops + second.stops,
    )
