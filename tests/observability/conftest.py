"""Synthetic runs, written through the event log as a run writes them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from rollart.events import (
    Alarm,
    BatchCommitted,
    BatchFormed,
    CheckpointSaved,
    EngineUpdated,
    Evaluated,
    Event,
    EventLog,
    FirstToken,
    PoolBusy,
    ProtocolStep,
    RunEnded,
    RunStarted,
    TrainStepped,
    TrajectoryEnded,
    TrajectoryScored,
    TrajectoryStarted,
    VersionPublished,
    WorkerPlaced,
)
from rollart.types import EngineAddress, FailureKind, Outcome, TrajectoryId

DOMAINS = {"lake": 0.5, "math": 0.5}


class RunWriter:
    """Writes the records of a run at times that the test chooses."""

    def __init__(self, folder: Path, wall_time: float = 1000.0) -> None:
        self.folder = folder
        self.t = 0.0
        self._log = EventLog(folder / "events", folder.name, "control", 0.0, wall_time, lambda: self.t)

    def at(self, t: float, *events: Event) -> None:
        self.t = t
        for event in events:
            self._log.emit(event)

    def close(self) -> None:
        self._log.close()


def started(**changes: object) -> RunStarted:
    settings: dict[str, object] = {
        "mode": "rollart",
        "alpha": 1,
        "seed": 7,
        "iterations": 3,
        "groups_per_batch": 2,
        "group_size": 2,
        "domains": DOMAINS,
        "pools": {"local": "CPU"},
    }
    return RunStarted(**{**settings, **changes})  # type: ignore[arg-type]


def evaluated(domain: str, version: int, success: float | None, policy: str = "model") -> Evaluated:
    reward = None if success is None else 2 * success
    return Evaluated(domain, version, policy, 200, success, reward, 0, 5.0)


def scored(id: TrajectoryId, reward: float, version: int, tokens: int = 10) -> TrajectoryScored:
    seconds = {"reset": 0.1, "step": 0.2, "generate": 0.5, "reward": 0.01}
    return TrajectoryScored(id, reward, reward > 0.5, 3, tokens, 4 * tokens, version, None, seconds)


def members(domain: str, group: int) -> list[TrajectoryId]:
    return [TrajectoryId(domain, group, group, member) for member in range(2)]


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    """A finished run of three iterations: evaluation, two domains, one failure with a retry, one stale group.

    Times: evaluation 0-10 s, iterations end at 20, 30 and 40 s, evaluation 42-47 s.
    """
    folder = tmp_path / "quick"
    run = RunWriter(folder)
    run.at(
        0.0,
        WorkerPlaced("train-0", "train", "local", "CPU", "host"),
        WorkerPlaced("generate-0", "generate", "local", "CPU", "host"),
        WorkerPlaced("environment-0", "environment", "local", "CPU", "host"),
        started(),
    )
    run.at(5.0, evaluated("lake", 0, 0.1, "random"), evaluated("math", 0, 0.2, "random"))
    run.at(10.0, evaluated("lake", 0, 0.15), evaluated("math", 0, 0.25))
    for index in range(3):
        _iteration(run, index)
    run.at(47.0, evaluated("lake", 3, 0.65), evaluated("math", 3, 0.85))
    run.at(48.0, CheckpointSaved(3, str(folder / "checkpoints" / "000003"), 0.5), RunEnded("finished"))
    run.close()
    return folder


def _iteration(run: RunWriter, index: int) -> None:
    """Ten seconds: two groups are played in 6 s, the batch forms, trains for 2 s, and engines take the version."""
    begin = 10.0 + 10 * index
    groups = {"lake": members("lake", 2 * index), "math": members("math", 2 * index + 1)}
    for domain, ids in groups.items():
        run.at(begin, *(TrajectoryStarted(id, 1, "environment-0") for id in ids))
        run.at(begin + 1, *(FirstToken(id, index) for id in ids))
        run.at(begin + 6, *(scored(id, 1.0 if domain == "math" else 0.0, index) for id in ids))
    if index == 1:
        _troubles(run, begin)
    version = max(0, index - 1)
    run.at(
        begin + 7,
        PoolBusy("generate-0", "generate", "local", begin, begin + 7, 3.5, running=4),
        PoolBusy("environment-0", "environment", "local", begin, begin + 7, 0.0, running=8),
        BatchFormed(index, {"lake": 1, "math": 1}, {index - version: 4}, 1.0),
        ProtocolStep("get_batch", index, index, 1.0),
    )
    run.at(begin + 7.2, ProtocolStep("suspend", index, index, 0.1))
    run.at(
        begin + 7.5,
        EngineUpdated(EngineAddress(0), index, 0.3, "aa", 0),
        ProtocolStep("update", index, index, 0.3),
    )
    ends = [
        TrajectoryEnded(id, Outcome.TRAINED, None, "", 10, 1.0, True, index - version)
        for ids in groups.values()
        for id in ids
    ]
    metrics = {"loss": 1.0 / (index + 1), "entropy": 1.0 - 0.1 * index}
    alarms = ("entropy fell",) if index == 2 else ()
    run.at(
        begin + 10,
        *ends,
        TrainStepped(index, index + 1, 2.0, 40, metrics, alarms),
        BatchCommitted(index, 4),
        ProtocolStep("train_step", index, index + 1, 2.1),
        *(Alarm("training", alarm) for alarm in alarms),
        VersionPublished(index + 1, 1 << 20, 1, 0.2, "aa"),
    )


def _troubles(run: RunWriter, begin: float) -> None:
    """A failed trajectory, and a group that was aborted as stale after 5 tokens a member."""
    failed = TrajectoryId("lake", 90, 90, 0)
    stale = members("math", 91)
    run.at(begin + 6, *(TrajectoryStarted(id, 1, "environment-0") for id in (failed, *stale)))
    run.at(
        begin + 6.5,
        TrajectoryEnded(failed, Outcome.FAILED, FailureKind.STEP_TIMEOUT, "lake: step hung", 3),
        *(TrajectoryEnded(id, Outcome.ABORTED_STALE, generated_tokens=5) for id in stale),
    )


@pytest.fixture
def make_run(tmp_path: Path) -> Callable[..., RunWriter]:
    """A function that opens a run folder to write records to."""

    def make(name: str = "made", wall_time: float = 1000.0) -> RunWriter:
        return RunWriter(tmp_path / name, wall_time)

    return make
