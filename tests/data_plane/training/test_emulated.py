"""The trainer without a model: what it reports of a batch."""

from __future__ import annotations

import asyncio

from rollart.data_plane.training.emulated import EmulatedLearner, EmulatedTimes
from rollart.simulation import virtual_loop
from rollart.types import (
    FinishReason,
    Group,
    LengthSpan,
    Segment,
    TrainBatch,
    TrainReport,
    Trajectory,
    TrajectoryId,
    Turn,
    VersionRun,
)


def member(number: int, tokens: int) -> Trajectory:
    turn = Turn(LengthSpan(3), LengthSpan(tokens), (VersionRun(0, tokens),), FinishReason.STOP, 0.0, "", "")
    return Trajectory(TrajectoryId("d0", 0, 0, number), 1, (Segment((turn,)),))


def test_what_is_withheld_enters_no_loss() -> None:
    batch = TrainBatch(0, (Group("d0", 0, 0, (member(0, 5), member(1, 7), member(2, 11)), 0, withheld=(1,)),))

    async def train() -> TrainReport:
        learner = EmulatedLearner(0, EmulatedTimes(train=2.0))
        report = await learner.train_step(batch)
        assert asyncio.get_running_loop().time() == 2.0
        return report

    report = virtual_loop.run(train())
    assert (report.index, report.version, report.tokens) == (0, 1, 16)
