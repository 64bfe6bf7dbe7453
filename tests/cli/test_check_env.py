from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest

MODULE = """\
import random

class Unstable:
    def reset(self, seed, task): return f"start {random.random()}"
    def step(self, action): return "next", 1.0, True, False, {"success": action == "win"}
    def random_action(self, seed): return "lose"

class Broken(Unstable):
    def reset(self, seed, task): raise RuntimeError("no display")

class Silent(Unstable):
    def reset(self, seed, task): return [{"role": "user", "content": f"hello {seed % 7}"}]
    random_action = None
"""


@pytest.fixture
def module(folder: Path) -> str:
    (folder / "played_envs.py").write_text(MODULE)
    return "played_envs"


def test_the_environments_are_listed(rollart: Any) -> None:
    ran = rollart("check-env")
    assert ran.code == 0
    assert "frozen_lake      cross a random frozen lake" in ran.out


def test_a_random_policy_plays(rollart: Any) -> None:
    ran = rollart("check-env", "frozen_lake", "--episodes", 4, "--show", 0, "--seed", 3)
    again = rollart("check-env", "frozen_lake", "--episodes", 4, "--show", 0, "--seed", 3)

    assert ran.code == 0
    assert ran.out.startswith("--- 4 episodes: success ")
    assert again.out == ran.out, "equal seeds play equal episodes"


def test_a_scripted_policy_plays_its_actions(rollart: Any, folder: Path) -> None:
    script = ("--policy", "scripted", "--action", "right", "--action", "left")
    ran = rollart("check-env", "lake", "--config", "CONFIG.yaml", *script, "--episodes", 1, "--arg", "holes=0")

    assert ran.code == 0, ran.err
    assert ran.out.splitlines()[:4] == ["--- instance 0", "P . .", ". . .", ". . G"]
    assert "\n> right\n. P .\n" in ran.out
    assert "\n> left\nP . .\n" in ran.out
    assert "mean turns 2.0, 1 cut" in ran.out


def test_a_users_environment_plays_in_its_own_process(rollart: Any, module: str) -> None:
    script = ("--policy", "scripted", "--action", "win")
    ran = rollart("check-env", f"{module}:Silent", *script, "--episodes", 2, "--show", 2)

    assert ran.code == 0, ran.err
    assert ran.out.count("[user] hello") == 2
    assert "2 episodes: success 1.000, mean reward 1.000, mean turns 1.0, 0 cut" in ran.out


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("Broken", "reset_error in instance 0: played_envs:Broken: reset raised RuntimeError: no display"),
        ("Unstable", "reset gives another observation for the same seed and task"),
        ("Silent", "no_random_policy in instance 0: played_envs:Silent: Silent has no method 'random_action'"),
    ],
)
def test_what_training_could_not_use_is_code_1(rollart: Any, module: str, name: str, problem: str) -> None:
    ran = rollart("check-env", f"{module}:{name}", "--episodes", 1)

    assert ran.code == 1
    assert problem in ran.err
    assert ran.err.count("\n") == 1


def test_a_human_needs_a_terminal(rollart: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO())
    ran = rollart("check-env", "frozen_lake", "--policy", "human")

    assert ran.code == 2
    assert "needs a terminal" in ran.err
