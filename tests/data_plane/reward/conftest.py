from pathlib import Path

import numpy as np
import pytest

from rollart.types import Segment, TokenSpan, Trajectory, TrajectoryId, Turn, VersionRun


@pytest.fixture(autouse=True)
def _modules_importable(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parent / "modules"))


@pytest.fixture
def trajectory() -> Trajectory:
    """Two turns that paid 0.1 and 0.2."""
    span = TokenSpan.of(np.array([1, 2], np.int32), np.zeros(2, np.float32))
    turns = tuple(
        Turn(span, span, (VersionRun(0, 2),), reward=reward, observation_text="seen", action_text=said)
        for reward, said in ((0.1, "left"), (0.2, "right"))
    )
    return Trajectory(TrajectoryId("lake", 0, 0, 0), seed=1, segments=(Segment(turns),))
