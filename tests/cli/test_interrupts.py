"""Ctrl-C and SIGTERM in every phase of ``rollart train``: it ends, leaves nothing behind, and can be resumed."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from stop_points import Run

from rollart.control_plane.checkpoints import latest
from rollart.data_plane.training import checkpoint
from rollart.observability.summary import read_summary

Resumed = Callable[[Run], None]


@pytest.fixture
def resumed(rollart: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Resumed:
    """Resumes a run and checks that it ends as if nothing had happened."""

    def resume(run: Run) -> None:
        monkeypatch.setattr(checkpoint, "write_tensors", checkpoint.write_tensors)  # the run's module wraps it
        ran = rollart("train", "CONFIG.yaml", "run.runtime=in_process", "--resume", run.folder)
        assert ran.code == 0, ran.err
        summary = read_summary(run.folder)
        assert summary.iterations == 4
        assert summary.in_flight == 0

    return resume


def test_during_start_up(folder: Path) -> None:
    with Run("start") as run:
        held = run.reach("start", "start")  # the first is the command's own look at the configuration
        run.interrupt()
        code, err = run.end()

        assert code == 130, err
        assert "interrupted at once; it has no checkpoint yet, so start it anew" in err
        assert not run.remains()
        held.close()


def test_during_rollout(resumed: Resumed) -> None:
    """The environment hangs, in a process of its own."""
    with Run("rollout") as run:
        held = run.reach("train", "rollout")
        run.interrupt()
        run.go_on()
        code, err = run.end()

        assert code == 130, err
        assert "its newest checkpoint is runs/rollout/checkpoints/step_000001; to go on: rollart train" in err
        assert not run.remains()
        held.close()
    assert latest(run.folder).version == 1
    resumed(run)


def test_during_a_train_step(resumed: Resumed) -> None:
    """The step is finished, and kept."""
    with Run("train") as run:
        held = run.reach("train", "train")
        run.process.send_signal(signal.SIGTERM)
        run.line("rollart: stopping: ")
        held.close()
        run.go_on()
        code, err = run.end()

        assert code == 130, err
        assert not run.remains()
    assert latest(run.folder).version == 2
    resumed(run)


def test_during_an_evaluation(resumed: Resumed) -> None:
    with Run("evaluation") as run:
        held = run.reach("train", "evaluation")
        run.interrupt()
        run.go_on()
        code, err = run.end()

        assert code == 130, err
        assert not run.remains()
        held.close()
    assert latest(run.folder).version == 1
    resumed(run)


def test_while_a_checkpoint_is_written(resumed: Resumed) -> None:
    with Run("save") as run:
        held = run.reach("save")
        assert not list(run.folder.glob("checkpoints/step_??????"))
        run.interrupt()
        run.line("rollart: stopping: ")
        held.close()
        run.go_on()
        code, err = run.end()

        assert code == 130, err
        assert not run.remains()
    assert latest(run.folder).version == 2
    resumed(run)


@pytest.mark.ray
def test_twice_during_a_train_step_on_ray(resumed: Resumed) -> None:
    """The step hangs, so its weights are lost, and the earlier checkpoint is the newest."""
    with Run("twice", runtime="ray") as run:
        held = run.reach("save", "train")
        run.interrupt()
        run.line("rollart: stopping: ")
        run.interrupt()
        code, err = run.end()

        assert code == 130, err
        assert "interrupted at once; its newest checkpoint is runs/twice/checkpoints/step_000002" in err
        assert not run.remains()
        held.close()
    assert latest(run.folder).version == 2
    resumed(run)
