"""The data of the examples: made by its script, distinct, and solved by its own answers."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from rollart.data_plane.reward.verifiers import numeric

ROOT = Path(__file__).parents[1]
DATA = ROOT / "examples" / "data"
FILES = ("word_problems_train.jsonl", "word_problems_test.jsonl")


def test_the_script_writes_the_committed_files(tmp_path: Path) -> None:
    script = ROOT / "scripts" / "make_word_problems.py"
    subprocess.run([sys.executable, str(script), str(tmp_path)], check=True, capture_output=True, timeout=60)
    for name in FILES:
        assert (DATA / name).read_text() == (tmp_path / name).read_text(), f"{name}: run scripts/make_word_problems.py"


def test_no_problem_is_trained_and_held_out() -> None:
    questions = [json.loads(line)["question"] for name in FILES for line in (DATA / name).read_text().splitlines()]

    assert len(questions) == len(set(questions)) == 240


@pytest.mark.parametrize("name", FILES)
def test_solutions_are_right(name: str) -> None:
    steps = re.compile(r"(\d+) ([-+*/]) (\d+) = (\d+)")
    for line in (DATA / name).read_text().splitlines():
        answer = json.loads(line)["answer"]
        worked = steps.findall(answer)
        for left, sign, right, result in worked:
            a, b = int(left), int(right)
            assert {"+": a + b, "-": a - b, "*": a * b, "/": a / b}[sign] == int(result), line
        assert numeric(f"The answer is {worked[-1][-1]}.", answer), line
