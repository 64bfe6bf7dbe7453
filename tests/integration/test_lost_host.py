"""The process of an environment host is killed in a run on Ray: the run goes on and completes."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import whole_job

from rollart.config.config import Config
from rollart.events import Event, TrajectoryEnded, TrajectoryStarted, WorkerRestarted
from rollart.runtime.ray import RayRuntime
from rollart.runtime.ray_cluster import RayCluster
from rollart.runtime.runtime import WorkerHandle
from rollart.types import FailureKind, Outcome

MakeConfig = Callable[..., Config]


class Killer:
    """A sink that kills the first process of a worker when the worker's first trajectories have started."""

    def __init__(self, runtime: RayRuntime, worker: str, after: int) -> None:
        self.pids: list[int] = []
        self._worker = worker
        self._left = after
        self._spawn = runtime.spawn
        runtime.spawn = self._watched  # type: ignore[method-assign]

    async def _watched(self, *args: object) -> WorkerHandle:
        handle = await self._spawn(*args)  # type: ignore[arg-type]
        if handle.info.worker == self._worker:
            self.pids.append(handle.info.pid)
        return handle

    def emit(self, event: Event) -> None:
        if isinstance(event, TrajectoryStarted) and event.host == self._worker:
            self._left -= 1
            if self._left == 0:
                os.kill(self.pids[0], signal.SIGKILL)


@pytest.mark.ray
@pytest.mark.timeout(whole_job.SECONDS + 60)
@pytest.mark.parametrize("hosts", [1, 2])
def test_the_run_completes(hosts: int, make_config: MakeConfig, tmp_path: Path, ray_cluster: RayCluster) -> None:
    runtime = RayRuntime(ray_cluster, keep_cluster=True)
    killer = Killer(runtime, "environment-0", after=5)
    changes = {"hosts": hosts, "retry_delay": 0.01}
    config = make_config(delays=5, run={"mode": "rollart", "alpha": 1}, rollout=changes)
    record = whole_job.play(config, tmp_path, runtime, sink=killer)

    assert record.result.version == len(record.batches) == config.run.iterations
    if hosts == 1:  # with two, the other may be done before the first is back
        (restarted,) = record.of(WorkerRestarted)
        assert (restarted.worker, restarted.restart) == ("environment-0", 1)
        assert f"pid {killer.pids[0]}" in restarted.cause
        assert len(killer.pids) == 2
    ended = record.of(TrajectoryEnded)
    lost = [event for event in ended if event.failure is FailureKind.HOST_LOST]
    assert len(lost) >= 5 - hosts
    assert {event.outcome for event in lost} == {Outcome.FAILED}
    started = Counter(event.id for event in record.of(TrajectoryStarted))
    assert started == Counter(event.id for event in ended)
    trained = Counter(member.id for batch in record.batches for group in batch.groups for member in group.members)
    assert set(trained.values()) == {1}
    assert not set(trained) & {event.id for event in lost}
