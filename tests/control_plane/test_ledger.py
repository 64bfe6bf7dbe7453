"""Every started trajectory ends in exactly one outcome."""

from __future__ import annotations

import pytest

from rollart.control_plane.ledger import Ledger, LedgerError
from rollart.events import MemorySink, TrajectoryEnded, TrajectoryStarted
from rollart.types import FailureKind, Outcome, TrajectoryId

A = TrajectoryId("a", 0, 0, 0)
B = TrajectoryId("a", 0, 0, 1)


def test_started_equals_outcomes_plus_in_flight_at_any_time() -> None:
    ledger = Ledger(MemorySink())
    for step in (
        lambda: ledger.start(A, 1, "h"),
        lambda: ledger.start(B, 1, "h"),
        lambda: ledger.end(A, Outcome.TRAINED),
        lambda: ledger.end(B, Outcome.FAILED, failure=FailureKind.STEP_ERROR),
    ):
        step()
        assert ledger.started == ledger.outcomes.total() + ledger.in_flight
    assert ledger.failures == {FailureKind.STEP_ERROR: 1}
    assert ledger.open == ()


def test_double_start_double_end_and_end_without_start_are_refused() -> None:
    ledger = Ledger(MemorySink())
    with pytest.raises(LedgerError, match="not in flight"):
        ledger.end(A, Outcome.TRAINED)
    ledger.start(A, 1, "h")
    with pytest.raises(LedgerError, match="started twice"):
        ledger.start(A, 1, "h")
    ledger.end(A, Outcome.TRAINED)
    with pytest.raises(LedgerError, match="not in flight"):
        ledger.end(A, Outcome.SURPLUS)
    assert ledger.outcomes == {Outcome.TRAINED: 1}


def test_the_event_log_says_what_the_counters_say() -> None:
    sink = MemorySink()
    ledger = Ledger(sink)
    ledger.start(A, 7, "host-0")
    ledger.end(A, Outcome.TRAINED, generated_tokens=3, reward=0.5, success=True, staleness=1)
    assert sink.events == [
        TrajectoryStarted(A, 7, "host-0"),
        TrajectoryEnded(A, Outcome.TRAINED, None, "", 3, 0.5, True, 1),
    ]
