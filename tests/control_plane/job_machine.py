"""A live job in virtual time under a random schedule of events from outside, checked after every one of them.

Hypothesis chooses a scenario (mode, switches, sizes, latencies, failures) and then what happens and when: time
passes, hosts die, environments fail or become slow, engines lose answers, the trainer, the push and each step of an
update are held up, the user stops the run or an engine dies, and the run is resumed. The invariants that can be seen at
a moment hold after every step, all of them when the run has ended.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Collection, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from families import any_run, scenarios
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from invariants import unaccounted, violations
from scenarios import Scenario
from story import Story
from virtual_job import SCRATCH, LiveJob, Recorder
from weather import STALLS, WEATHER

from rollart.control_plane.checkpoints import latest
from rollart.control_plane.job import JobResult
from rollart.control_plane.job_state import JobState
from rollart.events import TrainStepped
from rollart.simulation.virtual_loop import VirtualTimeLoop
from rollart.types import TrainBatch

T = TypeVar("T")

STOPS = 2
"""How often one run is stopped at most, by its user or by the death of an engine."""

QUICK = settings(
    max_examples=40,
    stateful_step_count=15,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],  # shrinking replays whole jobs: minutes
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


class JobMachine(RuleBasedStateMachine):
    """See the module docstring."""

    @initialize(scenario=scenarios(any_run))
    def begin(self, scenario: Scenario) -> None:
        WEATHER.clear()
        self.loop = VirtualTimeLoop()
        asyncio.set_event_loop(self.loop)
        self.scratch = tempfile.TemporaryDirectory(dir=SCRATCH)
        self.scenario = msgspec.structs.replace(
            scenario, **{"outdoors": True, "iterations": 4, "restart": (0.2, 0), "answer_timeout": 8.0} | self.fixed()
        )
        self.recorder = Recorder(self.scenario)
        self.loop.explain_with(self.recorder.wait_graph)
        self.batches: list[TrainBatch] = []
        self.starts, self.stops = 1, 0
        self.lives: list[LiveJob] = []
        """Kept: episodes on hosts that died play on, unheard."""
        self.launch(JobState())

    def fixed(self) -> dict[str, Any]:
        """Fields that every scenario of the machine has."""
        return {}

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
    @rule(answers=st.integers(1, 3))
    def engines_lose_answers(self, answers: int) -> None:
        WEATHER.losing += answers

    @precondition(lambda self: self.alive)
    @rule(what=st.sampled_from(STALLS), seconds=st.sampled_from([0.05, 0.5, 4.0]))
    def something_is_held_up(self, what: str, seconds: float) -> None:
        WEATHER.until[what] = self.loop.time() + seconds

    @precondition(lambda self: self.alive and self.stops < STOPS)
    @rule()
    def the_user_stops_and_resumes(self) -> None:
        self.live.job.interrupt()
        self.ends_and_is_resumed()

    @precondition(lambda self: self.alive and self.stops < STOPS and self.trained > 0)
    @rule(number=st.integers(0, 1))
    def an_engine_dies_and_the_user_resumes(self, number: int) -> None:
        engine = f"generate-{number % self.scenario.engines}"
        whole, self.scenario = self.scenario, msgspec.structs.replace(self.scenario, death=(self.loop.time(), engine))
        self.until(self.live.die(engine))
        self.ends_and_is_resumed(whole)

    @property
    def trained(self) -> int:
        """The newest version."""
        steps = [event.version for event in self.recorder.events if isinstance(event, TrainStepped)]
        return max(steps, default=0)

    def ends_and_is_resumed(self, scenario: Scenario | None = None) -> None:
        """The run ends; it goes on from its last checkpoint unless there is nothing left to do."""
        self.until(asyncio.wait({self.running}))
        self.stops += 1
        self.check_at_rest()
        self.scenario = scenario or self.scenario
        # the last batch may have been formed and not trained: it is formed again
        self.batches[:] = [batch for batch in self.batches if batch.index < self.trained]
        if self.trained < self.scenario.iterations:
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
