from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

RUN = """\
run: {name: sim, iterations: 4, mode: rollart}
rollout: {groups_per_batch: 2, group_size: 4, max_environments: 16}
engine: {devices: 1, answer_timeout: 14400}
training: {devices: 2, checkpoint: {every: 0}}
placement: {train: train, generate: [rollout], environment: hosts}
pools:
  train: {hardware: H800, devices: 2}
  rollout: {hardware: H20, devices: 2}
  hosts: {hardware: CPU, devices: 1}
simulation:
  model: qwen3-8b
  workloads: {gem_game: {like: gem_game}}
"""

EXPERIMENT = """\
name: two
title: Two modes
seeds: [0]
skipped: 1
base:
{base}
vary:
  - factor: system
    points: {{sync_plus: {{run.mode: sync_plus}}, rollart: {{run.mode: rollart}}}}
compare:
  - {{label: gain, field: step_time_s, factor: system, of: sync_plus, to: rollart}}
"""


@pytest.fixture
def files(folder: Path) -> Path:
    (folder / "run.yaml").write_text(RUN)
    base = "\n".join(f"  {line}" for line in RUN.splitlines())
    (folder / "two.yaml").write_text(EXPERIMENT.format(base=base))
    return folder


def test_a_run_leaves_the_folder_of_a_training_run(rollart: Any, files: Path) -> None:
    ran = rollart("simulate", "run.yaml", "run.seed=3", "--json", "row.json")
    assert ran.code == 0, ran.err
    assert "tokens/s" in ran.out
    run = files / "runs" / "sim"
    assert (run / "report.html").exists()
    assert json.loads((run / "summary.json").read_text())
    assert rollart("report", "runs/sim").code == 0
    (row,) = json.loads((files / "row.json").read_text())
    assert row["step_time_s"] > 0


def test_an_experiment_prints_a_row_for_each_point_and_its_ratios(rollart: Any, files: Path) -> None:
    ran = rollart("simulate", "two.yaml", "--json", "rows.json")
    assert ran.code == 0, ran.err
    assert [line.split()[0] for line in ran.out.splitlines()[1:3]] == ["sync_plus", "rollart"]
    assert ran.out.splitlines()[-1].startswith("gain")
    rows = json.loads((files / "rows.json").read_text())
    assert [row["system"] for row in rows] == ["sync_plus", "rollart"]


def test_the_shipped_experiments_are_listed(rollart: Any) -> None:
    ran = rollart("simulate", "--list")
    assert ran.code == 0
    assert {"end_to_end", "pd_disaggregation", "production"} <= {line.split()[0] for line in ran.out.splitlines()}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "name an experiment or give a file"),
        (["end_to_en"], "did you mean 'end_to_end'"),
        (["two.yaml", "--only", "system:async"], "has no point 'async'"),
        (["two.yaml", "--only", "system"], "--only"),
        (["two.yaml", "--jobs", "0"], "--jobs"),
        (["two.yaml", "--only", "system:rollart", "--only", "system:sync_plus"], "'system' was given before"),
        (["two.yaml", "--seeds", "1000000000000"], "give 1000 or fewer"),
        (["two.yaml", "--keep", "two.yaml"], "--keep two.yaml: cannot be a folder"),
        (["two.yaml", "--keep", "two.yaml/below"], "--keep two.yaml/below: cannot be a folder"),
        (["two.yaml", "--json", "."], "--json .: cannot be written"),
        (["two.yaml", "run.iterations=2"], "rollart: run.iterations is 2"),
        (["run.yaml", "run.iterations=2"], "set it to 3 or more"),
        (["run.yaml", "--json", "missing/row.json"], "--json missing/row.json: cannot be written"),
        (["run.yaml", "--only", "system:rollart"], "--only belongs to an experiment"),
        (["run.yaml", "--seeds", "2"], "--seeds belongs to an experiment"),
        (["run.yaml", "--keep", "kept"], "--keep belongs to an experiment"),
        (["x" * 5000], "File name too long"),
        (["run.yaml", f"run.seed={'9' * 5000}"], "run.seed"),
        (["run.yaml", f"run.seed={'[' * 5000}"], "nested too deeply"),
        (["two.yaml", "run.iterationz=3"], "run.iterationz"),
        (["run.yaml", "simulation.model=qwen9"], "qwen9"),
        (["run.yaml", "pools.train.devices=1"], "training.devices"),
        (["run.yaml", "placement.prefill=[hosts]"], "placement.prefill"),
        (["run.yaml", "placement.prefill=[rollout]"], "leaves no pool that decodes"),
        (["run.yaml", "simulation.constants={push_rat: 1}"], "did you mean 'push_rate'"),
        (["run.yaml", "simulation.constants={push_rate: 1.0e-300}"], "is plausible"),
        (["run.yaml", "simulation.workloads.gem_game.step_seconds=1e300"], "step_seconds reaches 1e+300 s"),
        (["run.yaml", "simulation.workloads.gem_game.first_observation=40000"], "leaves no room in max_context"),
        (["run.yaml", "engine.answer_timeout=1e-9"], "engine.answer_timeout"),
        (["run.yaml", "placement.generate=[rollout, rollout]"], "names a pool twice"),
    ],
)
def test_bad_input_is_one_message(rollart: Any, files: Path, arguments: list[str], message: str) -> None:
    ran = rollart("simulate", *arguments)
    assert ran.code == 2, ran.out + ran.err
    assert message in ran.err
    assert "Traceback" not in ran.err
    assert not (files / "runs").exists()


@pytest.mark.parametrize(
    ("correct", "wrong", "message"),
    [
        ("seeds: [0]", "seeds: []", "seeds: "),
        ("seeds: [0]", "seeds: [0, 0]", "has one twice"),
        ("field: step_time_s", "field: nope", "a row has no number 'nope'"),
        ("field: step_time_s", "field: outcomes", "a row has no number 'outcomes'"),
        ("factor: system, of", "factor: nope, of", "there is no factor 'nope', there are: system"),
        ("of: sync_plus", "of: nope", "factor 'system' has no point 'nope'"),
        ("factor: system\n", "factor: seeds\n", "a factor cannot be 'seeds'"),
        ("vary:", "vary:\n  - {factor: system, points: {a: {}}}", "two axes have the same factor"),
        ("{run.mode: rollart}", "{rollout.hosts: 3}", "rollart: placement.environment"),
    ],
)
def test_an_experiment_is_checked_before_its_first_point(
    rollart: Any, files: Path, correct: str, wrong: str, message: str
) -> None:
    text = (files / "two.yaml").read_text()
    (files / "two.yaml").write_text(text.replace(correct, wrong))
    ran = rollart("simulate", "two.yaml")
    assert ran.code == 2, ran.out + ran.err
    assert message in ran.err
    assert not ran.out


def test_a_run_that_fails_is_one_message(rollart: Any, files: Path) -> None:
    failing = "simulation.workloads.gem_game.reset_error=1"
    ran = rollart("simulate", "run.yaml", failing)
    assert ran.code == 1
    assert ran.err.startswith("rollart: no domain is left to train")
    ran = rollart("simulate", "two.yaml", failing, "--jobs", "2")
    assert ran.code == 1
    assert ran.err.startswith("rollart: sync_plus, seed 0: no domain is left to train")
