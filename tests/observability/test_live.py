from __future__ import annotations

import io
import time
from pathlib import Path

import pytest
from rich.console import Console

from rollart.events import (
    Alarm,
    BatchFormed,
    DomainSuspended,
    FirstToken,
    MemorySink,
    RunStarted,
    TrainStepped,
    TrajectoryEnded,
    TrajectoryScored,
    TrajectoryStarted,
    read_events,
)
from rollart.observability.live import LiveProgress
from rollart.observability.live_state import LiveState
from rollart.types import Outcome, TrajectoryId

START = RunStarted("rollart", 1, 7, 10, 2, 2, {"lake": 0.5, "math": 0.5}, {"local": "CPU"})


class Hand:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.t = 0.0

    def __call__(self) -> float:
        return self.t


def _console(terminal: bool) -> tuple[Console, io.StringIO]:
    out = io.StringIO()
    return Console(file=out, force_terminal=terminal, width=100, legacy_windows=False), out


def test_without_a_terminal_there_is_one_plain_line_an_iteration(run_folder: Path) -> None:
    console, out = _console(terminal=False)
    clock = Hand()
    with LiveProgress(console, now=clock) as live:
        for envelope in read_events(run_folder / "events"):
            clock.t = envelope.t
            live.emit(envelope.e)
            live.render()

    assert out.getvalue().splitlines() == [
        "held-out lake, random policy: success 0.10, reward 0.20",
        "held-out math, random policy: success 0.20, reward 0.40",
        "held-out lake, version 0: success 0.15, reward 0.30",
        "held-out math, version 0: success 0.25, reward 0.50",
        "iteration 1/3: success lake 0.00, math 1.00; staleness max 0; train 2.00 s, 40 tokens",
        "iteration 2/3: success lake 0.00, math 1.00; staleness max 1; train 2.00 s, 40 tokens, 0:10 left",
        "iteration 3/3: success lake 0.00, math 1.00; staleness max 1; train 2.00 s, 40 tokens, 0:00 left",
        "alarm training: entropy fell",
        "held-out lake, version 3: success 0.65, reward 1.30",
        "held-out math, version 3: success 0.85, reward 1.70",
    ]


def test_alarms_are_lines_too() -> None:
    console, out = _console(terminal=False)
    with LiveProgress(console) as live:
        for _ in range(3):
            live.emit(Alarm("stall", "get_batch(3) waits for groups"))
        live.emit(DomainSuspended("lake", "8 groups failed in a row"))

    assert out.getvalue().splitlines() == [
        "alarm stall: get_batch(3) waits for groups",
        "alarm: domain lake suspended: 8 groups failed in a row",
    ]


def test_the_panel_shows_the_state_of_the_run(run_folder: Path) -> None:
    console, out = _console(terminal=True)
    clock = Hand()
    with LiveProgress(console, now=clock) as live:
        live.render()
        assert "starting, 0 workers" in out.getvalue()
        for envelope in read_events(run_folder / "events"):
            clock.t = envelope.t
            live.emit(envelope.e)
            if isinstance(envelope.e, BatchFormed) and envelope.e.index == 2:
                break
        out.truncate(0)
        live.render()

    shown = out.getvalue()
    for part in (
        "iteration 2/3",
        "0:37 elapsed, 0:03 left",
        "mode rollart, alpha 1",
        "lake",
        "0.50 of 0.50",
        "0.15 at 0",
        "4 finished",
        "8 trained",
        "1 failed",
        "2 aborted_stale",
        "4 at 1",
        "local (CPU)",
        "generate-0",
        "50%",
    ):
        assert part in shown, part


def test_the_time_limit_bounds_the_time_left() -> None:
    console, _ = _console(terminal=False)
    clock = Hand()
    live = LiveProgress(console, max_train_seconds=30.0, now=clock)
    live.emit(START)
    assert live.seconds_left() is None
    live.emit(TrajectoryStarted(TrajectoryId("lake", 0, 0, 0), 1, "h"))
    for index in range(2):
        clock.t += 10.0
        live.emit(TrainStepped(index, index + 1, 1.0, 1, {}))
    assert live.seconds_left() == 10.0, "8 iterations of 10 s, but the limit leaves 10 s"


def test_live_trajectories_move_through_their_states() -> None:
    state = LiveState()
    state.emit(START)
    ids = [TrajectoryId("lake", 0, 0, member) for member in range(3)]
    for id in ids:
        state.emit(TrajectoryStarted(id, 1, "h"))
    for id in ids[:2]:
        state.emit(FirstToken(id, 0))
    state.emit(TrajectoryScored(ids[0], 1.0, None, 1, 1, 1, 0, None, {}))
    assert state.live == {"starting": 1, "running": 1, "finished": 1}
    assert (state.domains["lake"].reward, state.domains["lake"].success) == (1.0, None)
    for id in ids:
        state.emit(TrajectoryEnded(id, Outcome.ABANDONED))
    assert state.live.total() == 0
    assert state.outcomes == {Outcome.ABANDONED: 3}


def test_an_event_costs_microseconds(run_folder: Path) -> None:
    events = [envelope.e for envelope in read_events(run_folder / "events")] * 50
    console, _ = _console(terminal=True)
    live = LiveProgress(console)
    plain = MemorySink()

    def cpu(sink: LiveProgress | MemorySink) -> float:
        began = time.process_time()
        for event in events:
            sink.emit(event)
        return time.process_time() - began

    baseline = max(min(cpu(plain) for _ in range(3)), 1e-6)
    assert cpu(live) < 400 * baseline, "more than a list append by orders of magnitude"


@pytest.mark.parametrize("terminal", [True, False])
def test_leaving_a_display_that_saw_nothing(terminal: bool) -> None:
    console, _ = _console(terminal)
    with LiveProgress(console):
        pass
