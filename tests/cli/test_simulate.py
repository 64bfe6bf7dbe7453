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
        (["two.yaml", "run.iterationz=3"], "run.iterationz"),
        (["run.yaml", "simulation.model=qwen9"], "qwen9"),
        (["run.yaml", "pools.train.devices=1"], "training.devices"),
        (["run.yaml", "placement.prefill=[hosts]"], "placement.prefill"),
        (["run.yaml", "placement.prefill=[rollout]"], "leaves no pool that decodes"),
        (["run.yaml", "simulation.constants={push_rat: 1}"], "did you mean 'push_rate'"),
    ],
)
def test_bad_input_is_one_message(rollart: Any, files: Path, arguments: list[str], message: str) -> None:
    ran = rollart("simulate", *arguments)
    assert ran.code == 2, ran.out + ran.err
    assert message in ran.err
    assert "Traceback" not in ran.err
    assert not (files / "runs").exists()
