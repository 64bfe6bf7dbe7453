"""A deadlock or a lost wake-up anywhere ends a run of the tests with who waits for whom, and for what."""

from __future__ import annotations

import asyncio
import re

import pytest
from invariants import violations
from scenarios import Scenario
from story import Story
from virtual_job import Hang, play

from rollart.control_plane import rollout_scheduler
from rollart.control_plane.barrier import Barrier
from rollart.control_plane.llm_proxy import LLMProxy
from rollart.control_plane.protocol import TrainingProtocol
from rollart.control_plane.waits import Signal, Waits
from rollart.control_plane.watchdog import wait_graph
from rollart.data_plane.training.emulated import EmulatedLearner
from rollart.simulation import virtual_loop
from rollart.simulation.virtual_loop import Deadlock
from rollart.types import TrainBatch, TrainReport


def hang(story: Story) -> str:
    """What a run that hangs says, which is what the properties would say of it."""
    assert isinstance(story.error, Hang), story.error
    message = str(story.error)
    assert f"liveness: Hang: {message}" in violations(story)
    return message


def test_a_policy_that_waits_for_ever_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollout_scheduler, "waiting_saves_a_group", lambda *arguments: True)
    message = hang(play(Scenario(seed=4, stale="wait")))
    assert "get_batch(0) waits" in message
    assert "next batch 0 needs" in message


def test_a_barrier_that_loses_a_wake_up_is_named_with_who_waits_for_whom(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that has played its last turn is not taken out of the barrier of turns."""

    def forgetful(self: Barrier[object], key: object) -> None:
        self._arrived.pop(key, None)

    monkeypatch.setattr(Barrier, "excuse", forgetful)
    message = hang(play(Scenario(seed=3, mode="sync", iterations=1)))
    assert "get_batch(0) waits" in message
    assert "requests wait for" in message
    assert "others, first d" in message


def test_a_lost_wake_up_is_named_with_who_waits_for_whom(monkeypatch: pytest.MonkeyPatch) -> None:
    """The training side is not woken by a finished trajectory."""
    receive, notify = rollout_scheduler.RolloutScheduler.receive, Signal.notify
    deaf: list[bool] = []

    def unheard(self: rollout_scheduler.RolloutScheduler, *arguments: object) -> None:
        deaf.append(True)
        receive(self, *arguments)  # type: ignore[arg-type]
        deaf.pop()

    monkeypatch.setattr(rollout_scheduler.RolloutScheduler, "receive", unheard)
    monkeypatch.setattr(Signal, "notify", lambda self: None if deaf else notify(self))
    message = hang(play(Scenario(seed=4)))
    assert "get_batch(0) waits" in message
    assert "groups ready" in message


def test_a_trainer_that_never_answers_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(self: EmulatedLearner, batch: TrainBatch) -> TrainReport:
        await asyncio.get_running_loop().create_future()
        raise AssertionError

    monkeypatch.setattr(EmulatedLearner, "train_step", never)
    message = hang(play(Scenario(seed=4)))
    assert "the driver waits" in message
    assert "train-0.train_step" in message


def test_a_gate_that_forgets_who_waits_at_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engines resume, but the requests that arrived meanwhile stay at the gate."""
    monkeypatch.setattr(LLMProxy, "_open_gate", lambda self: None)
    message = hang(play(Scenario(seed=4, transfer="blocking", slow=(0.0, 0.05), publish=0.5)))
    assert re.search(r"get_batch\(\d\) waits", message)
    assert re.search(r"LLMProxy: gate open, [1-9]\d* requests at it", message)
    assert re.search(r"members: .*[1-9]\d* running", message)


def test_an_update_that_nobody_makes_is_named_by_both_sides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TrainingProtocol, "update_due", lambda self: None)
    message = hang(play(Scenario(seed=4, mode="sync_plus")))
    assert "get_batch(1) waits" in message
    assert re.search(r"rollout side waits .* for an update that is due", message)
    assert "versions engines=0 announced=0 trained=1" in message
    assert "admission 0, next batch 1" in message


def test_a_run_in_which_things_happen_for_ever_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """No group that fails counts: its domain is tried again and again."""
    monkeypatch.setattr(rollout_scheduler.RolloutScheduler, "_bad_group", lambda self, domain: None)
    message = hang(play(Scenario(seed=4, reset_error=1.0, retries=0)))
    assert "the run goes on for ever" in message
    assert re.search(r"RolloutScheduler: \d+ groups open .* next batch 0 needs", message)


def test_a_deadlock_of_the_virtual_loop_has_the_wait_for_graph() -> None:
    waits = Waits()

    async def main() -> None:
        await Signal(waits).wait_for(lambda: False, "the trainer", lambda: "the batch of nobody")

    with pytest.raises(Deadlock) as raised:
        virtual_loop.run(main(), lambda: wait_graph(waits, [lambda: "SampleBuffer: empty"]))
    message = str(raised.value)
    assert "nothing can happen any more at virtual time 0.000" in message
    assert "the trainer waits 0.0 s for the batch of nobody" in message
    assert "SampleBuffer: empty" in message
