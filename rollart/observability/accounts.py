"""The books of a run: every started trajectory ends in exactly one outcome.

Folds lifecycle records of training trajectories. Invariant, checked record by record: an id is started
once, ends at most once, and never ends without having started; so ``started`` is always the sum of
the outcomes plus those in flight. When a run is resumed after a crash, what was in flight then can have no
record of its own and counts as ``abandoned``; the resumed run may start the same ids again.

Used by the summary, the metrics and the report.
"""

from __future__ import annotations

from collections import Counter

from rollart.events import Event, RunStarted, TrajectoryEnded, TrajectoryScored, TrajectoryStarted
from rollart.types import FailureKind, Outcome, Purpose, TrajectoryId


class Accounts:
    """Counts by outcome, of trajectories and of generated tokens.

    Attributes:
        started: Training trajectories that were started.
        outcomes: Ended trajectories by outcome.
        failures: Those that ended as ``failed``, by kind.
        tokens: Generated tokens of ended trajectories by outcome.
        max_staleness: Highest staleness of a trained trajectory, ``None`` before the first.
        problems: Violations of the invariant, one line each; empty in a sound run.
    """

    def __init__(self) -> None:
        self.started = 0
        self.outcomes: Counter[Outcome] = Counter()
        self.failures: Counter[FailureKind] = Counter()
        self.tokens: Counter[Outcome] = Counter()
        self.max_staleness: int | None = None
        self.problems: list[str] = []
        self._open: dict[TrajectoryId, int] = {}
        self._ended: set[TrajectoryId] = set()

    @property
    def in_flight(self) -> int:
        """Started and not yet ended."""
        return len(self._open)

    @property
    def tokens_in_flight(self) -> int:
        """Generated tokens of scored trajectories that have not yet ended."""
        return sum(self._open.values())

    @property
    def balanced(self) -> bool:
        """Whether started equals the sum of the outcomes plus those in flight, with no record out of order."""
        return not self.problems and self.started == self.outcomes.total() + self.in_flight

    def add(self, event: Event) -> None:
        """Fold one record; other records and evaluation trajectories are ignored."""
        match event:
            case TrajectoryStarted(id=id) if id.purpose is Purpose.TRAIN:
                self._start(id)
            case TrajectoryScored(id=id) if id.purpose is Purpose.TRAIN:
                if id in self._open:
                    self._open[id] = event.generated_tokens
                else:
                    self.problems.append(f"{id} was scored, but is not in flight")
            case TrajectoryEnded(id=id) if id.purpose is Purpose.TRAIN:
                self._end(event)
            case RunStarted():
                self._restart()
            case _:
                pass

    def _start(self, id: TrajectoryId) -> None:
        self.started += 1
        if id in self._open or id in self._ended:
            self.problems.append(f"{id} was started twice")
        self._open[id] = 0

    def _end(self, event: TrajectoryEnded) -> None:
        if self._open.pop(event.id, None) is None:
            how = "ended twice" if event.id in self._ended else "ended, but was never started"
            self.problems.append(f"{event.id} {how} (now as {event.outcome.value})")
            return
        self._ended.add(event.id)
        self._count(event.outcome, event.generated_tokens)
        if event.failure is not None:
            self.failures[event.failure] += 1
        elif event.outcome is Outcome.FAILED:
            self.problems.append(f"{event.id} ended as failed without saying what failed")
        if event.outcome is Outcome.TRAINED and event.staleness is not None:
            self.max_staleness = max(event.staleness, self.max_staleness or 0)

    def _count(self, outcome: Outcome, tokens: int) -> None:
        self.outcomes[outcome] += 1
        self.tokens[outcome] += tokens

    def _restart(self) -> None:
        for tokens in self._open.values():
            self._count(Outcome.ABANDONED, tokens)
        self._open.clear()
        self._ended.clear()
