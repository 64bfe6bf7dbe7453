"""A run that its user stops: what it does not start any more, and what comes too late."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from scenarios import Scenario
from virtual_job import LiveJob, Recorder

from rollart.control_plane.env_host import HostReport
from rollart.control_plane.env_manager import Cancelled
from rollart.control_plane.job import JobResult
from rollart.control_plane.job_state import JobState
from rollart.control_plane.wiring import Wiring
from rollart.events import Event, TrajectoryEnded, TrajectoryStarted
from rollart.simulation import virtual_loop


def stopped(scenario: Scenario, folder: Path, moment: float, before: Callable[[Wiring], None]) -> list[Event]:
    """The events of a run that is stopped at a moment, right after ``before``."""
    recorder = Recorder(scenario)
    live = LiveJob(scenario, recorder, [], folder, JobState())

    async def main() -> JobResult:
        await live.place()
        running = asyncio.get_running_loop().create_task(live.run())
        await asyncio.sleep(moment)
        assert live.job.wiring is not None
        before(live.job.wiring)
        live.job.interrupt()
        return await running

    assert virtual_loop.run(main(), recorder.wait_graph).interrupted
    return recorder.events


def test_one_that_is_stopped_in_the_first_evaluation_starts_nothing(tmp_path: Path) -> None:
    seen: list[int] = []
    scenario = Scenario(seed=4, evaluate_every=1, iterations=20)
    events = stopped(scenario, tmp_path, 0.1, lambda wiring: seen.append(len(wiring.scheduler._players)))
    assert seen[0] > 0, "the evaluation plays"
    assert [event for event in events if isinstance(event, TrajectoryStarted)] == []


@pytest.mark.parametrize("late", ["lost", "cancelled"])
def test_what_a_host_tells_of_trajectories_that_were_given_up_is_no_news(late: str, tmp_path: Path) -> None:
    """A run that ends does not wait for ever for its hosts; what they say afterwards does not fail it."""

    def give_up(wiring: Wiring) -> None:
        scheduler, (host,) = wiring.scheduler, wiring.hosts
        scheduler.finish()
        held = list(wiring.cores.ledger.open)
        assert held
        scheduler.abandon_open()
        assert wiring.cores.ledger.in_flight == 0
        if late == "lost":
            scheduler.host_lost(host, "gone")
        else:
            scheduler.receive(host, HostReport(cancelled=[Cancelled(id, 1) for id in held]))

    events = stopped(Scenario(seed=4, iterations=20), tmp_path, 0.5, give_up)
    ended = [event.id for event in events if isinstance(event, TrajectoryEnded)]
    assert len(ended) == len(set(ended))
