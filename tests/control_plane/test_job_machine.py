"""A live job in virtual time under a random schedule of events from outside, checked after every one of them.

Hypothesis chooses a scenario (mode, switches, sizes, latencies, failures) and then what happens and when: time
passes, hosts die, environments fail or become slow, the trainer, the push and each step of an update are held up,
the user stops the run and resumes it. The invariants that can be seen at a moment hold after every step, all of
them when the run has ended.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Collection, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from invariants import Story, unaccounted, violations
from scenarios import Scenario, random_scenario
from virtual_job import SCRATCH, LiveJob, Recorder
from weather import STALLS, WEATHER

from rollart.config.config import Config
from rollart.control_plane.checkpoints import latest
from rollart.control_plane.host_client import HostClient
from rollart.control_plane.job import JobResult
from rollart.control_plane.job_state import JobState
from rollart.control_plane.rollout_scheduler import RolloutScheduler
from rollart.control_plane.stages import Stages
from rollart.control_plane.training_loop import TrainingLoop
from rollart.control_plane.wiring import Wiring
from rollart.simulation.virtual_loop import VirtualTimeLoop
from rollart.types import TrainBatch

T = TypeVar("T")

STOPS = 2
"""How often the user stops one run at most."""


class JobMachine(RuleBasedStateMachine):
    """See the module docstring."""

    @initialize(seed=st.integers(0, 2**32))
    def begin(self, seed: int) -> None:
        WEATHER.clear()
        self.loop = VirtualTimeLoop()
        asyncio.set_event_loop(self.loop)
        self.scratch = tempfile.TemporaryDirectory(dir=SCRATCH)
        self.scenario = self.draw(seed)
        self.recorder = Recorder(self.scenario)
        self.loop.explain_with(self.recorder.wait_graph)
        self.batches: list[TrainBatch] = []
        self.starts, self.stops = 1, 0
        self.lives: list[LiveJob] = []
        """Kept: episodes on hosts that died play on, unheard."""
        self.launch(JobState())

    def draw(self, seed: int) -> Scenario:
        return msgspec.structs.replace(random_scenario(seed), outdoors=True, iterations=4, restart=(0.2, 0))

    def launch(self, start: JobState) -> None:
        self.live = LiveJob(self.scenario, self.recorder, self.batches, Path(self.scratch.name), start)
        self.lives.append(self.live)
        self.until(self.live.place())
        self.running: asyncio.Task[JobResult] = self.loop.create_task(self.live.run())

    def until(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(work)

    @property
    def alive(self) -> bool:
        return not self.running.done()

    @rule(seconds=st.sampled_from([0.01, 0.1, 0.5, 2.0]))
    def time_passes(self, seconds: float) -> None:
        self.until(asyncio.sleep(seconds))

    @precondition(lambda self: self.alive)
    @rule(number=st.integers(0, 1))
    def a_host_dies(self, number: int) -> None:
        self.until(self.live.kill(number % self.scenario.hosts))

    @precondition(lambda self: self.alive)
    @rule(steps=st.integers(1, 4))
    def environments_fail(self, steps: int) -> None:
        WEATHER.failing += steps

    @precondition(lambda self: self.alive)
    @rule(seconds=st.sampled_from([0.0, 0.3, 1.0, 3.0]))
    def environments_become_slow(self, seconds: float) -> None:
        """3 s are beyond the environments' deadline; they are quick again after a while."""
        WEATHER.step_seconds = seconds
        self.loop.call_later(1.5, self.fair_weather)

    def fair_weather(self) -> None:
        WEATHER.step_seconds = 0.0

    @precondition(lambda self: self.alive)
    @rule(what=st.sampled_from(STALLS), seconds=st.sampled_from([0.05, 0.5, 4.0]))
    def something_is_held_up(self, what: str, seconds: float) -> None:
        WEATHER.until[what] = self.loop.time() + seconds

    @precondition(lambda self: self.alive and self.stops < STOPS)
    @rule()
    def the_user_stops_and_resumes(self) -> None:
        self.live.job.interrupt()
        self.until(asyncio.wait({self.running}))
        self.stops += 1
        self.check_at_rest()
        if self.running.exception() is None and self.running.result().version < self.scenario.iterations:
            self.starts += 1
            self.launch(latest(Path(self.scratch.name)))

    @invariant()
    def what_can_be_seen_at_a_moment_holds(self) -> None:
        if not hasattr(self, "running"):
            return
        found = [*self.recorder.breaches]
        wiring = self.live.job.wiring
        if wiring is not None and self.alive:
            found += unaccounted(wiring)
        assert not found, "\n".join(found)

    def check_at_rest(self) -> None:
        story = Story(
            *(self.scenario, self.recorder.events, self.recorder.times, self.batches),
            *(self.running.exception(), self.recorder.breaches, self.starts, self.stops),
        )
        found = violations(story)
        assert not found, "\n".join(found)

    def teardown(self) -> None:
        if not hasattr(self, "running"):
            return
        try:
            self.until(asyncio.wait({self.running}))
            self.check_at_rest()
        finally:
            tasks = asyncio.all_tasks(self.loop)
            for task in tasks:
                task.cancel()
            self.until(_ended(tasks))
            asyncio.set_event_loop(None)
            self.loop.close()
            self.scratch.cleanup()


async def _ended(tasks: Collection[asyncio.Task[Any]]) -> None:
    await asyncio.gather(*tasks, return_exceptions=True)


QUICK = settings(
    max_examples=25,
    stateful_step_count=15,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],  # shrinking replays whole jobs: minutes
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)

TestJob = JobMachine.TestCase
TestJob.settings = QUICK


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_long_schedules_of_many_jobs() -> None:
    longer = settings(QUICK, max_examples=1000, stateful_step_count=30)
    run_state_machine_as_test(JobMachine, settings=longer)  # type: ignore[no-untyped-call]


def found_by_the_machine(machine: type[JobMachine], examples: int = 120) -> str:
    """The first violation that the machine finds, in its words."""
    search = settings(
        QUICK,
        max_examples=examples,
        phases=[Phase.generate],
        database=None,
        report_multiple_bugs=False,
        derandomize=True,
    )
    with pytest.raises(Exception) as found:
        run_state_machine_as_test(machine, settings=search)  # type: ignore[no-untyped-call]
    return str(found.value)


class LockStepJobs(JobMachine):
    """Lock-step, stage-wise and blocking runs only, where somebody waits for somebody else most of the time."""

    def draw(self, seed: int) -> Scenario:
        return msgspec.structs.replace(super().draw(seed), mode="sync", alpha=0, update=None)


class BusyJobs(JobMachine):
    """Runs in which versions change while trajectories run."""

    def draw(self, seed: int) -> Scenario:
        quick = {"mode": "rollart", "alpha": 2, "update": "eager", "train": 0.05, "publish": 0.0, "report": 0.0}
        return msgspec.structs.replace(super().draw(seed), **quick)


def test_the_machine_finds_one_that_ends_without_leaving_the_barriers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Stages, "ended", lambda self, trajectory: None)
    message = found_by_the_machine(LockStepJobs)
    assert "who waits for whom" in message or "nothing can happen any more" in message
    assert "wait for" in message


def test_the_machine_finds_a_lost_host_whose_trajectories_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    def forgetful(self: RolloutScheduler, host: HostClient, cause: str) -> None:
        for id in [id for id, holder in self._host_of.items() if holder is host]:
            self._freed(host, id)

    monkeypatch.setattr(RolloutScheduler, "host_lost", forgetful)
    assert "is in flight, but nobody has it" in found_by_the_machine(JobMachine)


def test_the_machine_finds_an_engine_that_resumes_before_the_swap(monkeypatch: pytest.MonkeyPatch) -> None:
    async def hasty(self: TrainingLoop, version: int) -> None:
        await self._proxy.resume()
        await self._proxy.update(self._manifests[version])

    monkeypatch.setattr(TrainingLoop, "_swap", hasty)
    assert "the engine is not suspended" in found_by_the_machine(BusyJobs)


def test_the_machine_finds_a_resumed_run_that_trains_a_batch_again(monkeypatch: pytest.MonkeyPatch) -> None:
    state = Wiring.state

    def behind(self: Wiring, config: Config, train_seconds: float) -> JobState:
        return msgspec.structs.replace(state(self, config, train_seconds), next_group=0)

    monkeypatch.setattr(Wiring, "state", behind)
    assert "was started twice" in found_by_the_machine(JobMachine)
