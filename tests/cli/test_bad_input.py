"""Bad input: one clear line, exit code 2, nothing started, never a traceback."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ENVIRONMENTS = """\
def needs_size(size): ...
class Broken:
    def reset(self, seed, task): raise RuntimeError("no display")
"""


@pytest.mark.parametrize(
    ("override", "problem"),
    [
        ("rollout.group_sise=4", "unknown key 'rollout.group_sise', did you mean 'rollout.group_size'?"),
        ("rollout.group_size=1", "set rollout.group_size to 2 or more"),
        ("pools.local.devices=2", "3 workers need 3 devices"),
        ("pools.local.devices=2", "raise pools.<name>.devices or lower engine.count or rollout.hosts"),
        ("placement.train=gpu", "no pool 'gpu', use one of: local"),
        ("pools.local.hardware=H8OO", "unknown hardware class 'H8OO': did you mean 'H800'?"),
        ("model.path=./absent", "no such folder: absent (give a Hugging Face model folder or a hub id)"),
        ("domains.lake.env=frozen_lak", "did you mean 'frozen_lake'?"),
        ("domains.lake.env=absent_module:Env", "absent_module"),
        ("engine.kind=troch", "engine.kind 'troch': no engine named 'troch': did you mean 'torch'?"),
        ("engine.kind=absent_module:Engine", "engine.kind 'absent_module:Engine'"),
        ("engine.kind=json:__name__", "engine.kind 'json:__name__' is not a class or function"),
        ("training.algorithm=absent_module:f", "training.algorithm 'absent_module:f': algorithm"),
        ("training.algorithm=json:__name__", "training.algorithm 'json:__name__' is not a function"),
        ("domains.lake.weight=.inf", "finite number"),
        ("training.learning_rate=1e400", "finite number"),
        ("domains.lake.args.sise=4", "did you mean 'size'?"),
        ("run.dir=/proc/none", "/proc/none/small: the run folder cannot be written"),
    ],
)
def test_one_line_says_what_where_and_what_to_do(rollart: Any, folder: Path, override: str, problem: str) -> None:
    ran = rollart("train", "CONFIG.yaml", override)

    assert ran.code == 2
    assert ran.out == ""
    assert ran.err.startswith("rollart: ")
    assert ran.err.count("\n") == 1, ran.err
    assert problem in ran.err
    assert not (folder / "runs").exists()


@pytest.mark.parametrize("command", ["plan", "train"])
def test_plan_refuses_what_train_refuses(rollart: Any, folder: Path, command: str) -> None:
    assert rollart(command, "CONFIG.yaml", "rollout.group_size=1").code == 2


def test_every_problem_is_reported_at_once(rollart: Any, folder: Path) -> None:
    ran = rollart("plan", "CONFIG.yaml", "domains.lake.env=x", "domains.guess.env=y", "pools.local.devices=1")

    assert ran.code == 2
    assert ran.err.count("rollart: CONFIG.yaml: ") == 3


def test_a_users_module_is_found_beside_the_configuration(rollart: Any, folder: Path) -> None:
    (folder / "my_small_envs.py").write_text(ENVIRONMENTS)

    ran = rollart("plan", "CONFIG.yaml", "domains.lake.env=my_small_envs:needs_size", "domains.lake.args={}")

    assert ran.err == (
        "rollart: CONFIG.yaml: domains.lake: environment 'my_small_envs:needs_size' needs the argument 'size': "
        "add it under 'args'\n"
    )


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("train", "absent.yaml"), "absent.yaml: no such file"),
        (("train", "CONFIG.yaml", "--resume", "runs/absent"), "runs/absent: no such run folder"),
        (("eval", "CONFIG.yaml", "--checkpoint", "absent"), "absent: no model there"),
        (("report", "absent"), "absent: no such run folder"),
        (("report", "."), ".: has no event log"),
        (("show", "absent"), "absent: no such run folder"),
        (("show", "."), ". keeps no trajectories: set log.trajectories above 0"),
        (("check-env", "frozen_lak"), "did you mean 'frozen_lake'?"),
        (("check-env", "frozen_lake", "--arg", "size"), "write it as KEY=VALUE"),
        (("check-env", "frozen_lake", "--policy", "scripted"), "give them in order"),
        (("check-env", "other", "--config", "CONFIG.yaml"), "no domain 'other': use one of lake, guess"),
    ],
)
def test_every_command_refuses_in_one_line(rollart: Any, folder: Path, arguments: Any, problem: str) -> None:
    ran = rollart(*arguments)

    assert ran.code == 2
    assert problem in ran.err
    assert ran.err.count("\n") == 1, ran.err


def test_wrong_usage_is_code_2(rollart: Any, folder: Path) -> None:
    assert rollart("trian").code == 2
    assert "unrecognized arguments: --fast" in rollart("plan", "CONFIG.yaml", "--fast").err
    assert "unrecognized arguments: a=b" in rollart("show", "x", "y", "a=b").err
    assert rollart("train", "--help").code == 0


def test_plan_and_help_need_neither_torch_nor_ray(folder: Path) -> None:
    code = (
        "import sys; from rollart.cli.main import main; assert main(['plan', 'CONFIG.yaml']) == 0; "
        "print('loaded', sorted({'torch', 'ray', 'transformers'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("loaded []\n")


def test_a_reader_that_has_seen_enough_is_no_error(folder: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "rollart.cli.main", "plan", "CONFIG.yaml"]
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writing)

    assert (done.returncode, done.stderr) == (0, "")
