"""The commands around a real run, in this process: train, show, report, eval, resume, failure."""

from __future__ import annotations

import importlib.util
import json
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rollart.config.load import load_config
from rollart.control_plane.job_state import JobState, fixed_settings
from rollart.events import WorkerPlaced, read_events
from rollart.observability.summary import read_summary


def test_a_run_from_training_to_evaluation(rollart: Any, folder: Path) -> None:
    trained = rollart("train", "CONFIG.yaml")

    assert trained.code == 0, trained.err
    assert "iteration 2/2: success lake" in trained.out
    assert "checkpoint  runs/small/checkpoints/step_000002" in trained.out
    run = folder / "runs" / "small"
    summary = read_summary(run)
    assert summary.iterations == 2
    assert summary.outcomes.trained == 8
    assert summary.started == summary.outcomes.total()
    assert summary.domains["lake"].success_after is not None
    assert "<svg" in (run / "report.html").read_text()
    placed = [record.e for record in read_events(run / "events") if isinstance(record.e, WorkerPlaced)]
    assert [(where.role, where.pool) for where in placed] == [
        (role, "local") for role in ("train", "generate", "environment", "reward")
    ]

    listed = rollart("show", run)
    assert listed.code == 0
    first = listed.out.splitlines()[1].split()[-1]
    shown = rollart("show", run, first, "--tokens")
    assert shown.code == 0
    assert "> " in shown.out
    assert rollart("show", run, "--domain", "nothing").code == 2
    assert "did you mean" in rollart("show", run, "lake/99/99/0/0").err

    (run / "summary.json").unlink()
    assert rollart("report", run).code == 0
    assert read_summary(run) == summary

    evaluated = rollart("eval", "CONFIG.yaml", "--checkpoint", run, "evaluation.random_policy=false")
    assert evaluated.code == 0, evaluated.err
    assert "held-out results of" in evaluated.out
    assert "step_000002" in evaluated.out

    resumed = rollart("train", "CONFIG.yaml", "--resume", run, "run.iterations=3")
    assert resumed.code == 0, resumed.err
    assert "iteration 3/3" in resumed.out
    assert read_summary(run).iterations == 3


def test_a_resume_with_another_seed_is_refused_before_anything_starts(
    rollart: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = folder / "runs" / "small"
    (run / "events").mkdir(parents=True)
    (run / "events" / "driver.jsonl").touch()
    (run / "checkpoints" / "step_000001").mkdir(parents=True)
    state = JobState(version=1, made_with=fixed_settings(load_config(folder / "CONFIG.yaml", ["run.seed=3"])))
    (run / "checkpoints" / "step_000001.job.json").write_bytes(msgspec.json.encode(state))
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    monkeypatch.setattr("rollart.cli.launch.launch", lambda *arguments: pytest.fail("something was started"))

    ran = rollart("train", "CONFIG.yaml", "--resume", "runs/small")

    assert ran.code == 2
    assert ran.err == (
        "rollart: --resume runs/small: the run cannot go on from runs/small/checkpoints/step_000001: run.seed is 0, "
        "the checkpoint was made with 3. Set them as they were, or start a new run from its weights with "
        "model.path=runs/small/checkpoints/step_000001\n"
    )
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*")} == before


def test_a_failed_run_is_one_line_with_the_details_in_a_file(rollart: Any, folder: Path) -> None:
    (folder / "hopeless_env.py").write_text(
        "class Env:\n"
        "    def reset(self, seed, task): raise RuntimeError('no display')\n"
        "    def step(self, action): ...\n"
        "def words(): return ['a']\n"
        "Env.words = staticmethod(words)\n"
    )
    overrides = [
        f"domains.{domain}.{setting}"
        for domain in ("lake", "guess")
        for setting in ("env=hopeless_env:Env", "args={}", "isolation=inline")
    ]
    ran = rollart(
        "train",
        "CONFIG.yaml",
        *overrides,
        "evaluation.instances=0",
        "rollout.retries=0",
        "rollout.starvation_limit=2",
    )

    assert ran.code == 1
    failure = next(line for line in ran.err.splitlines() if "the run failed" in line)
    assert failure.startswith("rollart: the run failed: ")
    assert "(details: runs/small/error.log); it has no checkpoint yet" in failure
    assert "Traceback" not in ran.err + ran.out
    assert "Traceback" in (folder / "runs/small/error.log").read_text()
    summary = json.loads((folder / "runs/small/summary.json").read_text())
    assert summary["outcomes"]["failed"]["reset_error"] > 0
    assert "no display" in (folder / "runs/small/report.html").read_text()


def test_the_books_of_a_damaged_log_do_not_pass(rollart: Any, folder: Path) -> None:
    events = folder / "runs" / "x" / "events"
    events.mkdir(parents=True)
    start = {"mode": "sync", "alpha": 0, "seed": 0, "iterations": 1, "groups_per_batch": 1, "group_size": 2}
    ended = {"type": "TrajectoryEnded", "id": ["lake", 0, 0, 0, 0, "train"], "outcome": "trained"}
    lines = [
        {"schema": 1, "run": "x", "process": "driver", "wall_time": 0.0},
        {"n": 0, "t": 0.0, "e": {"type": "RunStarted", **start, "domains": {"lake": 1.0}, "pools": {}}},
        {"n": 1, "t": 1.0, "e": ended},
    ]
    (events / "driver.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))

    ran = rollart("report", "runs/x")

    assert ran.code == 1
    assert "lake/0/0/0/0 ended, but was never started" in ran.out


def test_an_unknown_schema_is_refused(rollart: Any, folder: Path) -> None:
    events = folder / "runs" / "x" / "events"
    events.mkdir(parents=True)
    (events / "driver.jsonl").write_text('{"schema":9,"run":"x","process":"driver","wall_time":0.0}\n')

    ran = rollart("report", "runs/x")

    assert ran.code == 2
    assert "has event schema 9, this version reads 1" in ran.err


def test_ctrl_c_before_anything_has_started(rollart: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("rollart.cli.launch.launch", interrupted)

    ran = rollart("train", "CONFIG.yaml")

    assert ran.code == 130
    assert ran.err == "rollart: interrupted at once; it has no checkpoint yet, so start it anew\n"


def test_ctrl_c_after_a_checkpoint_says_how_to_go_on(
    rollart: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(config: Any, run: Path, *arguments: object) -> None:
        (run / "checkpoints" / "step_000001").mkdir(parents=True)
        state = {"version": 1, "next_group": 4, "cursors": {"lake": 2}}
        (run / "checkpoints" / "step_000001.job.json").write_text(json.dumps(state))
        raise KeyboardInterrupt

    monkeypatch.setattr("rollart.cli.launch.launch", interrupted)

    ran = rollart("train", "CONFIG.yaml")

    assert ran.code == 130
    assert "its newest checkpoint is runs/small/checkpoints/step_000001" in ran.err
    assert "to go on: rollart train CONFIG.yaml --resume runs/small" in ran.err


@pytest.mark.skipif(not importlib.util.find_spec("tensorboard"), reason="needs the optional package tensorboard")
def test_a_sink_that_cannot_be_made_is_one_line(rollart: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unwritable(*arguments: object) -> None:
        raise OSError("no place for the board")

    monkeypatch.setattr("rollart.observability.scalar_sinks.TensorBoardSink", unwritable)

    ran = rollart("train", "CONFIG.yaml", "log.tensorboard=true")

    assert ran.code == 1
    assert "rollart: the run failed: no place for the board (details: runs/small/error.log)" in ran.err
    assert "Traceback" not in ran.err + ran.out


def test_a_reader_that_leaves_does_not_end_training(folder: Path) -> None:
    command = [sys.executable, "-m", "rollart.cli.main", "train", "CONFIG.yaml", "evaluation.random_policy=false"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline().startswith("held-out ")
        process.stdout.close()
        err = process.stderr.read()
        code = process.wait(timeout=120)

    assert code == 0, err
    assert err.count("rollart: ") == 1
    assert "rollart: the live display stopped (BrokenPipeError" in err
    assert read_summary(folder / "runs" / "small").iterations == 2


def test_a_disk_that_fills_up_ends_the_run(rollart: Any, folder: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (150_000, hard))
    try:
        endless = ("run.iterations=100000", "run.mode=sync", "evaluation.instances=0", "log.trajectories=0")
        ran = rollart("train", "CONFIG.yaml", *endless)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    assert ran.code == 1
    failure = next(line for line in ran.err.splitlines() if "the run failed" in line)
    assert "File too large: 'runs/small/events/driver.jsonl': free some space" in failure
    assert "Traceback" not in ran.err + ran.out
