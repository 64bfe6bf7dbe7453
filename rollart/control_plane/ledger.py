"""The ledger: every started trajectory ends in exactly one recorded outcome.

``started == sum(outcomes) + in_flight`` holds after every call (invariant 2), because ``end`` refuses a
trajectory that was not started or has ended already. Pure: it emits the lifecycle records through the
sink it is given and keeps only counters and the set of trajectories in flight.
"""

from __future__ import annotations

from collections import Counter

from rollart.events import EventSink, TrajectoryEnded, TrajectoryStarted
from rollart.types import FailureKind, Outcome, TrajectoryId


class LedgerError(AssertionError):
    """A trajectory was started or ended twice, or ended without a start: a fault in the control plane."""


class Ledger:
    """Counts the training trajectories of one run."""

    def __init__(self, sink: EventSink) -> None:
        self._sink = sink
        self._in_flight: dict[TrajectoryId, None] = {}
        self.started = 0
        self.outcomes: Counter[Outcome] = Counter()
        self.failures: Counter[FailureKind] = Counter()

    @property
    def in_flight(self) -> int:
        return len(self._in_flight)

    @property
    def open(self) -> tuple[TrajectoryId, ...]:
        """Trajectories without an outcome, oldest first."""
        return tuple(self._in_flight)

    def start(self, trajectory: TrajectoryId, seed: int, host: str) -> None:
        """Record a start.

        Raises:
            LedgerError: this trajectory is in flight already.
        """
        if trajectory in self._in_flight:
            raise LedgerError(f"{trajectory} was started twice")
        self._in_flight[trajectory] = None
        self.started += 1
        self._sink.emit(TrajectoryStarted(trajectory, seed, host))

    def end(
        self,
        trajectory: TrajectoryId,
        outcome: Outcome,
        *,
        failure: FailureKind | None = None,
        message: str = "",
        generated_tokens: int = 0,
        reward: float | None = None,
        success: bool | None = None,
        staleness: int | None = None,
    ) -> None:
        """Record the outcome.

        Raises:
            LedgerError: the trajectory is not in flight.
        """
        if self._in_flight.pop(trajectory, self) is self:
            raise LedgerError(f"{trajectory} ends as {outcome.value}, but it is not in flight")
        self.outcomes[outcome] += 1
        if failure is not None:
            self.failures[failure] += 1
        self._sink.emit(
            TrajectoryEnded(trajectory, outcome, failure, message, generated_tokens, reward, success, staleness)
        )
