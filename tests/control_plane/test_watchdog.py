"""A worker that hangs is named while the run starts and while it trains, in virtual time."""

from __future__ import annotations

import asyncio

import pytest
from scenarios import Scenario
from story import Story
from virtual_job import play

from rollart.control_plane.host_client import HostClient
from rollart.control_plane.watched import WatchedHandle
from rollart.data_plane.training.emulated import EmulatedLearner
from rollart.data_plane.training.trainer import TrainerInfo
from rollart.events import Alarm


def stalls(story: Story) -> list[str]:
    alarms = [event.message for event in story.events if isinstance(event, Alarm) and event.subject == "watchdog"]
    return [message for message in alarms if message.startswith("nothing has moved")]


def test_a_trainer_that_does_not_start_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = EmulatedLearner.start

    async def start(self: EmulatedLearner, checkpoint: str) -> TrainerInfo:
        await asyncio.sleep(200.0)
        return await whole(self, checkpoint)

    monkeypatch.setattr(EmulatedLearner, "start", start)
    story = play(Scenario(seed=3, iterations=1))

    assert story.error is None
    (stall,) = stalls(story)
    assert "the driver waits 120.0 s for train-0.start (role train-0, pool local, " in stall
    assert "gives up after 900 s" in stall


def test_a_train_step_that_hangs_is_named_with_who_waits_for_it() -> None:
    story = play(Scenario(seed=3, iterations=1, train=500.0))

    assert story.error is None
    (stall,) = stalls(story)
    assert "s for train-0.train_step (" in stall
    assert "RolloutScheduler: " in stall


def test_a_host_that_was_started_again_is_watched_too() -> None:
    seen: list[HostClient] = []
    restarted = HostClient.restarted
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(HostClient, "restarted", lambda self, handle: (seen.append(self), restarted(self, handle)))
        story = play(Scenario(seed=4, kills=((0.2, 0),)))

    assert story.error is None
    assert [type(host.handle) for host in seen] == [WatchedHandle]
