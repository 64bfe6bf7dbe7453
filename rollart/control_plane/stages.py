"""Stages of a rollout: which trajectories go on at once and which wait for the others.

With ``rollout.interaction: batch`` environments take their turns in lock-step: requests leave together once every
playing trajectory has one (or has ended), and actions return together once the engines have answered all of them.
With ``rollout.scoring: batch`` nobody is scored before all that run have finished playing. With ``trajectory`` (both
are independent switches) nobody waits for anybody.

Evaluation never comes here. Called by the RolloutScheduler; pure but for the callbacks.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from rollart.config.modes import Pace
from rollart.control_plane.barrier import Barrier
from rollart.types import TrajectoryId

Go = Callable[[], None]


class Stages:
    """See the module docstring."""

    def __init__(self, interaction: Pace, scoring: Pace) -> None:
        self._in_step = interaction == "batch"
        self._scored_together = scoring == "batch"
        self._actions: Barrier[TrajectoryId] = Barrier(lasting=False)
        self._turns: Barrier[TrajectoryId] = Barrier(lasting=True, released=self._expect_actions)
        self._scores: Barrier[TrajectoryId] = Barrier(lasting=False)

    def started(self, trajectory: TrajectoryId) -> None:
        """The trajectory begins to play."""
        if self._in_step:
            self._turns.expect(trajectory)
        if self._scored_together:
            self._scores.expect(trajectory)

    def requested(self, trajectory: TrajectoryId, go: Go, excused: Go) -> None:
        """It asks for an action; ``excused`` answers it if it is cancelled while it waits."""
        if self._in_step:
            self._turns.arrive(trajectory, go, excused)
        else:
            go()

    def answered(self, trajectory: TrajectoryId, go: Go) -> None:
        """An engine has answered it."""
        if self._in_step:
            self._actions.arrive(trajectory, go, go)
        else:
            go()

    def played(self, trajectory: TrajectoryId, go: Go) -> None:
        """It has played its last turn and may be scored at ``go``."""
        self._turns.excuse(trajectory)
        if self._scored_together:
            self._scores.arrive(trajectory, go, _nothing)
        else:
            go()

    def ended(self, trajectory: TrajectoryId) -> None:
        """It is over, or cancelled: nobody waits for it any more."""
        self._turns.excuse(trajectory)
        self._actions.excuse(trajectory)
        self._scores.excuse(trajectory)

    def _expect_actions(self, trajectories: Collection[TrajectoryId]) -> None:
        for trajectory in trajectories:
            self._actions.expect(trajectory)

    def describe(self) -> str:
        """Who waits, in one line for the watchdog; empty if nobody does."""
        barriers = (("requests", self._turns), ("actions", self._actions), ("scores", self._scores))
        return "; ".join(
            f"{barrier.waiting} {name} wait for {_named(barrier.missing)}"
            for name, barrier in barriers
            if barrier.waiting
        )


def _named(missing: Sequence[TrajectoryId]) -> str:
    return f"{len(missing)} others, first {missing[0]}" if missing else "nobody, but were not released"


def _nothing() -> None: ...
