"""Small values that several control-plane tests need."""

from __future__ import annotations

from rollart.types import (
    Group,
    LengthSpan,
    Limit,
    Score,
    Segment,
    Trajectory,
    TrajectoryId,
    Turn,
    VersionRun,
)


def trajectory(id: TrajectoryId, start: int = 0, reward: float = 1.0, limit: Limit | None = None) -> Trajectory:
    turn = Turn(LengthSpan(4), LengthSpan(2), (VersionRun(start, 2),))
    return Trajectory(id, seed=1, segments=(Segment((turn,)),), score=Score(reward, reward > 0), limit=limit)


def group(index: int, domain: str = "a", start: int = 0, size: int = 2) -> Group:
    members = tuple(trajectory(TrajectoryId(domain, index, index, member), start) for member in range(size))
    return Group(domain, index, index, members, start)
