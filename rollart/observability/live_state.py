"""What the live display knows: counters and short windows, updated in microseconds per record.

An event sink without a clock, a console or a thread: ``emit`` folds one record, the display reads the
fields. Memory is bounded by the trajectories in flight and by fixed windows.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from typing import Any

from rollart.events import (
    Alarm,
    BatchCommitted,
    BatchFormed,
    CheckpointSaved,
    DomainSuspended,
    Evaluated,
    EvaluationEnded,
    Event,
    Fallback,
    FirstToken,
    PoolBusy,
    ProtocolStep,
    RunEnded,
    RunStarted,
    TrainStepped,
    TrajectoryEnded,
    TrajectoryScored,
    TrajectoryStarted,
    WorkerPlaced,
)
from rollart.types import Outcome, Purpose, TrajectoryId

WINDOW = 200
"""Finished trajectories of a domain over which reward and success are averaged."""
MESSAGES = 4
"""Newest alarms and notices that are kept."""

WAITING, GENERATING, FINISHED = "starting", "running", "finished"
"""States of a live trajectory: no token yet, at least one token, scored and not yet in an outcome."""


class DomainWindow:
    """Recent results of one domain.

    Attributes:
        trained_groups: Groups in committed batches.
        configured: Configured share.
        suspended: Whether the scheduler gave up on it.
    """

    def __init__(self, configured: float) -> None:
        self.configured = configured
        self.trained_groups = 0
        self.suspended = False
        self._rewards: deque[float] = deque(maxlen=WINDOW)
        self._successes: deque[bool] = deque(maxlen=WINDOW)

    def add(self, reward: float, success: bool | None) -> None:
        self._rewards.append(reward)
        if success is not None:
            self._successes.append(success)

    @property
    def reward(self) -> float | None:
        """Mean reward over the window."""
        return sum(self._rewards) / len(self._rewards) if self._rewards else None

    @property
    def success(self) -> float | None:
        """Share of successes over the window, ``None`` if the domain reports none."""
        return sum(self._successes) / len(self._successes) if self._successes else None


class LiveState:
    """See the module docstring.

    Attributes:
        start: How the run was started; ``None`` until then.
        ended: Why it ended; ``None`` until then.
        iteration: Optimizer steps taken.
        domains: Recent results by domain.
        live: Live training trajectories by state.
        outcomes: Ended training trajectories by outcome.
        staleness: Trajectories of the newest batch by staleness.
        max_staleness: Highest staleness of any batch.
        placed, workers: Where each worker lives, and its newest busy record.
        step: Name of the newest finished protocol step.
        train: The newest optimizer step.
        evaluations: Newest held-out result by domain and policy.
        evaluating: Held-out instances played in the present pass.
        checkpoint: Path of the newest checkpoint.
        messages: Newest alarms and notices.
        repeated: Whether the newest alarm says what the last one of its subject said.
    """

    def __init__(self) -> None:
        self.start: RunStarted | None = None
        self.ended: str | None = None
        self.iteration = 0
        self.domains: dict[str, DomainWindow] = {}
        self.live: Counter[str] = Counter()
        self.outcomes: Counter[Outcome] = Counter()
        self.staleness: dict[int, int] = {}
        self.max_staleness = 0
        self.workers: dict[str, PoolBusy] = {}
        self.placed: dict[str, WorkerPlaced] = {}
        self.step = ""
        self.train: TrainStepped | None = None
        self.evaluations: dict[str, dict[str, Evaluated]] = {}
        self.evaluating = 0
        self.checkpoint: str | None = None
        self.messages: deque[str] = deque(maxlen=MESSAGES)
        self.repeated = False
        self._alarms: dict[str, str] = {}
        self._states: dict[TrajectoryId, str] = {}
        self._formed: dict[int, dict[str, int]] = {}
        self._fold: dict[type[Event], Callable[[Any], None]] = {
            RunStarted: self._run_started,
            RunEnded: self._run_ended,
            WorkerPlaced: self._worker_placed,
            TrajectoryStarted: self._trajectory_started,
            FirstToken: self._first_token,
            TrajectoryScored: self._scored,
            TrajectoryEnded: self._trajectory_ended,
            BatchFormed: self._batch_formed,
            BatchCommitted: self._committed,
            ProtocolStep: self._protocol_step,
            TrainStepped: self._train_stepped,
            PoolBusy: self._pool_busy,
            EvaluationEnded: self._evaluation_ended,
            Evaluated: self._evaluated,
            CheckpointSaved: self._checkpoint_saved,
            Alarm: self._alarm,
            Fallback: lambda event: self.messages.append(
                f"{event.subject}: wanted {event.wanted}, took {event.taken} ({event.reason})"
            ),
            DomainSuspended: self._domain_suspended,
        }

    def emit(self, event: Event) -> None:
        """Fold one record."""
        fold = self._fold.get(type(event))
        if fold is not None:
            fold(event)

    def trained_share(self, domain: str) -> float | None:
        """Share of the domain in the groups trained so far."""
        everything = sum(window.trained_groups for window in self.domains.values())
        return self.domains[domain].trained_groups / everything if everything else None

    def _run_started(self, event: RunStarted) -> None:
        self.start = event
        self.domains = {name: DomainWindow(share) for name, share in event.domains.items()}

    def _run_ended(self, event: RunEnded) -> None:
        self.ended = event.reason

    def _alarm(self, event: Alarm) -> None:
        """An alarm that is repeated word by word is shown once."""
        self.repeated = self._alarms.get(event.subject) == event.message
        self._alarms[event.subject] = event.message
        if not self.repeated:
            self.messages.append(f"{event.subject}: {event.message}")

    def _worker_placed(self, event: WorkerPlaced) -> None:
        self.placed[event.worker] = event

    def _move(self, id: TrajectoryId, state: str | None) -> None:
        before = self._states.pop(id, None)
        if before is not None:
            self.live[before] -= 1
        if state is not None:
            self._states[id] = state
            self.live[state] += 1

    def _trajectory_started(self, event: TrajectoryStarted) -> None:
        if event.id.purpose is Purpose.TRAIN:
            self._move(event.id, WAITING)

    def _evaluation_ended(self, event: EvaluationEnded) -> None:
        self.evaluating += 1

    def _first_token(self, event: FirstToken) -> None:
        if event.id in self._states:
            self._move(event.id, GENERATING)

    def _scored(self, event: TrajectoryScored) -> None:
        if event.id.purpose is not Purpose.TRAIN:
            return
        self._move(event.id, FINISHED)
        window = self.domains.get(event.id.domain)
        if window is not None:
            window.add(event.reward, event.success)

    def _trajectory_ended(self, event: TrajectoryEnded) -> None:
        if event.id.purpose is Purpose.TRAIN:
            self._move(event.id, None)
            self.outcomes[event.outcome] += 1

    def _batch_formed(self, event: BatchFormed) -> None:
        self.staleness = event.staleness
        self.max_staleness = max([self.max_staleness, *event.staleness])
        self._formed[event.index] = event.groups

    def _committed(self, event: BatchCommitted) -> None:
        for domain, groups in self._formed.pop(event.index, {}).items():
            if domain in self.domains:
                self.domains[domain].trained_groups += groups

    def _protocol_step(self, event: ProtocolStep) -> None:
        self.step = event.step

    def _train_stepped(self, event: TrainStepped) -> None:
        self.train = event
        self.iteration = event.version

    def _pool_busy(self, event: PoolBusy) -> None:
        self.workers[event.worker] = event

    def _evaluated(self, event: Evaluated) -> None:
        self.evaluating = 0
        self.evaluations.setdefault(event.domain, {})[event.policy] = event

    def _checkpoint_saved(self, event: CheckpointSaved) -> None:
        self.checkpoint = event.path

    def _domain_suspended(self, event: DomainSuspended) -> None:
        self.messages.append(f"domain {event.domain} suspended: {event.reason}")
        if event.domain in self.domains:
            self.domains[event.domain].suspended = True
