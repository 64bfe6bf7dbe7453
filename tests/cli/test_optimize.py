"""``rollart plan --optimize``: its table, its JSON, the workload of a finished run, and bad input."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from rollart.config.load import load_simulation
from rollart.config.simulation import mean_tokens
from rollart.simulation.optimizer import LAST

FAST = """\
rollout: {groups_per_batch: 4, group_size: 2, max_environments: 48}
engine: {max_rows: 64, answer_timeout: 14400, deterministic: true}
training: {devices: 2}
placement: {train: train, generate: [more, h20], environment: hosts, affinity: {long: H20, default: H800}}
pools:
  train: {hardware: H800, devices: 3}
  more: {hardware: H800, devices: 2}
  h20: {hardware: H20, devices: 2}
  hosts: {hardware: CPU, devices: 1}
simulation:
  workloads:
    long: {turns: 1, first_observation: 300, action: {median: 900, sigma: 0.4, max: 3000}}
    many: {turns: [3, 6], first_observation: 2000, observation: 1500, action: 20}
  reward: {kind: free}
"""

TRAINING = f"""\
model: {{tiny: {{max_length: 8192}}}}
domains:
  long: {{env: guess_number, max_context: 4096, max_new_tokens: 3000, weight: 3}}
  many: {{env: guess_number, max_context: 8192}}
{FAST.split("simulation:")[0]}"""

EXPERIMENT = """\
name: two
title: Two modes
base:
{base}
vary:
  - factor: system
    points: {{sync_plus: {{run.mode: sync_plus}}, rollart: {{run.mode: rollart}}}}
"""

FEW = ("--simulations", LAST + 6, "--max-alpha", 1)


@pytest.fixture
def files(folder: Path) -> Path:
    (folder / "fast.yaml").write_text(FAST)
    (folder / "training.yaml").write_text(TRAINING)
    (folder / "two.yaml").write_text(EXPERIMENT.format(base="\n".join(f"  {line}" for line in FAST.splitlines())))
    return folder


def test_the_given_configuration_comes_first_and_proposals_can_be_passed_on(rollart: Any, files: Path) -> None:
    ran = rollart("plan", "fast.yaml", "--optimize", *FEW, "--json", "plan.json")
    assert ran.code == 0, ran.err
    head, columns, *rows = ran.out.splitlines()
    assert "candidates estimated" in head
    assert "least step time at equal work" in head
    assert columns.split()[:2] == ["step", "s"]
    assert [row.split()[0] for row in rows if row[0] != " "][:2] == ["given", "1"]
    plan = json.loads((files / "plan.json").read_text())
    assert plan["given"]["settings"] == {}
    assert plan["objective"] == "time"
    assert plan["simulations"] <= LAST + 6
    assert plan["proposals"][0]["gain"]["mean"] > 0
    assert f"simulation {plan['simulations']}, " in ran.err
    assert not (files / "runs").exists()


def test_a_point_of_an_experiment_can_be_planned(rollart: Any, files: Path) -> None:
    ran = rollart("plan", "two.yaml", "--optimize", "--only", "system:sync_plus", "--objective", "cost", *FEW)
    assert ran.code == 0, ran.err
    assert "least cost of trained tokens" in ran.out
    assert "run.alpha" not in ran.out  # sync_plus trains at staleness 0


def test_the_workload_of_a_finished_run(rollart: Any, files: Path) -> None:
    simulated = rollart("simulate", "fast.yaml", "run.name=measured", "run.iterations=6")
    assert simulated.code == 0, simulated.err
    ran = rollart(
        *("plan", "training.yaml", "--optimize", "--workload", "runs/measured", "--model", "qwen3-8b"),
        *(*FEW, "--json", "plan.json"),
    )
    assert ran.code == 0, ran.err
    measured = json.loads((files / "plan.json").read_text())["given"]["tokens"]["mean"]
    long, many = (mean_tokens(load) for load in load_simulation(files / "fast.yaml").simulation.workloads.values())
    # three of four groups are of the shorter kind, by the weights of the training configuration
    assert measured == pytest.approx(8 * (0.75 * long + 0.25 * many), rel=0.15)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["fast.yaml", "--objective", "cost"], "--objective belongs to a search: add --optimize"),
        (["fast.yaml", "--json", "x.json"], "--json belongs to a search"),
        (["training.yaml", "--optimize"], "has no section 'simulation'"),
        (["training.yaml", "--optimize", "--workload", "runs/none"], "name the shape of its model: --model qwen3-8b|"),
        (["training.yaml", "--optimize", "--workload", "runs/none", "--model", "qwen3-8b"], "no such run folder"),
        (["fast.yaml", "--optimize", "--workload", "."], "has no event log"),
        (["fast.yaml", "--optimize", "--model", "qwen9"], "unknown model shape 'qwen9'"),
        (["fast.yaml", "--optimize", "--model", "qwen3-480b-a35b"], "an engine needs at least"),
        (
            ["fast.yaml", "--optimize", "--model", "qwen3-14b", "pools.train.devices=2", "pools.more.devices=1"],
            "at least 4 H800",
        ),
        (["fast.yaml", "--optimize", "training.devices=9"], "raise pools.train.devices"),
        (["fast.yaml", "--optimize", "training.devicez=9"], "unknown key 'training.devicez'"),
        (["fast.yaml", "--optimize", "--budget", "0"], "--budget 0: give minutes"),
        (["fast.yaml", "--optimize", "--simulations", "3"], "a budget of 3 simulations is too small"),
        (["fast.yaml", "--optimize", "--jobs", "0"], "--jobs"),
        (["fast.yaml", "--optimize", "--only", "system:sync"], "is not an experiment"),
        (["two.yaml", "--optimize"], "choose one with --only FACTOR:POINT (system:sync_plus|rollart)"),
        (["two.yaml", "--optimize", "--only", "system:async"], "has no point 'async'"),
        (["end_to_en", "--optimize"], "did you mean 'end_to_end'"),
    ],
)
def test_bad_input_is_one_message(rollart: Any, files: Path, arguments: list[str], message: str) -> None:
    ran = rollart("plan", *arguments)
    assert ran.code == 2, ran.out + ran.err
    assert message in ran.err
    assert len(ran.err.splitlines()) == 1
    assert "Traceback" not in ran.err


def test_a_run_without_one_of_the_domains_is_refused(rollart: Any, files: Path) -> None:
    short = yaml.safe_load(FAST)
    del short["simulation"]["workloads"]["long"]
    short["placement"]["affinity"] = {}
    (files / "short.yaml").write_text(yaml.safe_dump(short))
    assert rollart("simulate", "short.yaml", "run.name=short", "run.iterations=6").code == 0
    ran = rollart("plan", "fast.yaml", "--optimize", "--workload", "runs/short")
    assert ran.code == 2
    assert "the run had no domain 'long' (it had: many)" in ran.err
