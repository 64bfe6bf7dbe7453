"""Random schedules of running jobs (:mod:`job_machine`), and seeded mutants that they find."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test
from job_machine import QUICK, JobMachine

from rollart.config.config import Config
from rollart.control_plane.host_client import HostClient
from rollart.control_plane.job_state import JobState
from rollart.control_plane.rollout_scheduler import RolloutScheduler
from rollart.control_plane.stages import Stages
from rollart.control_plane.training_loop import TrainingLoop
from rollart.control_plane.wiring import Wiring

TestJob = JobMachine.TestCase
TestJob.settings = QUICK


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_long_schedules_of_many_jobs() -> None:
    longer = settings(QUICK, max_examples=1000, stateful_step_count=30)
    run_state_machine_as_test(JobMachine, settings=longer)


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
        run_state_machine_as_test(machine, settings=search)
    return str(found.value)


class LockStepJobs(JobMachine):
    """Lock-step, stage-wise and blocking runs only, where somebody waits for somebody else most of the time."""

    def fixed(self) -> dict[str, Any]:
        return {"mode": "sync", "alpha": 0, "update": None, "interaction": None}


class BusyJobs(JobMachine):
    """Runs in which versions change while trajectories run."""

    def fixed(self) -> dict[str, Any]:
        quick = {"train": 0.05, "publish": 0.0, "report": 0.0, "transfer": "asynchronous"}
        return {"mode": "rollart", "alpha": 2, "update": "eager"} | quick


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
