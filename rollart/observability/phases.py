"""Where the wall time of a run went: training, rollout and evaluation as intervals of its clock.

* An *evaluation* interval is what an ``Evaluated`` record says: the seconds before it.
* *Training* reaches, in every start of the run, from the first training trajectory to the last
  optimizer step (to the last record of a training trajectory if there was no step), without evaluation.
* *Rollout* is the time with at least one training trajectory neither scored nor ended, without
  evaluation.

Used by the summary and the metrics.
"""

from __future__ import annotations

from rollart.events import (
    BatchFormed,
    Envelope,
    Evaluated,
    ProtocolStep,
    RunStarted,
    TrainStepped,
    TrajectoryEnded,
    TrajectoryScored,
    TrajectoryStarted,
)
from rollart.observability.intervals import Interval, subtract
from rollart.types import Purpose, TrajectoryId


class Phases:
    """Folds the merged log into intervals and into seconds of the protocol's steps.

    Attributes:
        step_seconds: Summed seconds of the protocol's steps by name.
        train_seconds: Summed seconds of optimizer steps.
        wait_seconds: Summed seconds that ``get_batch`` waited.
    """

    def __init__(self) -> None:
        self.step_seconds: dict[str, float] = {}
        self.train_seconds = 0.0
        self.wait_seconds = 0.0
        self._running: set[TrajectoryId] = set()
        self._rollout_since: float | None = None
        self._rollout: list[Interval] = []
        self._evaluation: list[Interval] = []
        self._sessions: list[_Session] = []
        self._last = 0.0

    def add(self, envelope: Envelope) -> None:
        """Fold one record."""
        t = envelope.t
        match envelope.e:
            case RunStarted():
                self._restart(t)
            case TrajectoryStarted(id=id) if id.purpose is Purpose.TRAIN:
                self._session.saw_trajectory(t)
                self._running.add(id)
                if self._rollout_since is None:
                    self._rollout_since = t
            case TrajectoryScored(id=id) | TrajectoryEnded(id=id) if id.purpose is Purpose.TRAIN:
                self._session.saw_trajectory(t)
                self._stopped(id, t)
            case TrainStepped(seconds=seconds):
                self._session.last_step = t
                self.train_seconds += seconds
            case BatchFormed(waited=waited):
                self.wait_seconds += waited
            case ProtocolStep(step=step, seconds=seconds):
                self.step_seconds[step] = self.step_seconds.get(step, 0.0) + seconds
            case Evaluated(seconds=seconds):
                self._evaluation.append((t - seconds, t))
            case _:
                pass
        self._last = t

    def training(self) -> list[Interval]:
        """When the run trained, evaluation left out."""
        return subtract([session.training() for session in self._sessions], self._evaluation)

    def rollout(self) -> list[Interval]:
        """When training trajectories were running, evaluation left out."""
        unfinished = [] if self._rollout_since is None else [(self._rollout_since, self._last)]
        return subtract([*self._rollout, *unfinished], self._evaluation)

    def evaluation(self) -> list[Interval]:
        """When held-out instances were played; passes over several domains may overlap."""
        return list(self._evaluation)

    @property
    def _session(self) -> _Session:
        if not self._sessions:
            self._sessions.append(_Session())
        return self._sessions[-1]

    def _stopped(self, id: TrajectoryId, t: float) -> None:
        self._running.discard(id)
        if not self._running and self._rollout_since is not None:
            self._rollout.append((self._rollout_since, t))
            self._rollout_since = None

    def _restart(self, t: float) -> None:
        if self._rollout_since is not None:
            self._rollout.append((self._rollout_since, self._last))
            self._rollout_since = None
        self._running.clear()
        self._sessions.append(_Session())


class _Session:
    """One start of the run: from its first training trajectory to its last optimizer step."""

    def __init__(self) -> None:
        self.first: float | None = None
        self.last_trajectory = 0.0
        self.last_step: float | None = None

    def saw_trajectory(self, t: float) -> None:
        if self.first is None:
            self.first = t
        self.last_trajectory = t

    def training(self) -> Interval:
        if self.first is None:
            return (0.0, 0.0)
        return (self.first, max(self.first, self.last_step if self.last_step is not None else self.last_trajectory))
