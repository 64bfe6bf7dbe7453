import pytest

from rollart.data_plane.environment.calculator import evaluate, shown
from rollart.data_plane.environment.math_keypad import MEANINGS
from rollart.data_plane.environment.math_tool import MathTool


def total(task: MathTool, *actions: str):
    results = [task.step(action) for action in actions]
    assert results[-1][2]
    return sum(result[1] for result in results), results[-1][4]["success"], results


@pytest.mark.parametrize("key_by_key", [True, False])
def test_the_keypad_used_well(key_by_key):
    for seed in range(100):
        task = MathTool()
        word, first, second = task.reset(seed, 0).split()
        key = MEANINGS[word]
        expected = {
            "add": (int(first) + int(second)) % 10,
            "sub": abs(int(first) - int(second)),
            "max": max(int(first), int(second)),
            "min": min(int(first), int(second)),
        }[key]
        keys = [key, second] if key_by_key else [f"{key} {second}"]
        reward, success, results = total(task, *keys, str(expected))
        assert results[-2][0] == f"= {expected}"
        assert success
        assert reward == pytest.approx(1.4)


def test_the_keypad_used_badly():
    task = MathTool()
    task.reset(1, 0)
    reward, success, results = total(task, "nothing 3", "x")
    assert results[0][0] == "= err"
    assert not success
    assert not results[0][4]["is_action_valid"]
    assert reward <= 0.2

    task = MathTool()
    word, first, second = task.reset(1, 0).split()
    # The right answer without a result on the display, and keys that follow the tool call.
    right = int(evaluate({"add": f"({first}+{second})%10", "sub": f"abs({first}-{second})"}.get(
        MEANINGS[word], f"{MEANINGS[word]}({first},{second})")))  # fmt: skip
    _, success, results = total(task, f"wrong {second} {right} {right}", str(right))
    assert not success
    assert not results[0][2]


def test_the_dialogue():
    task = MathTool(style="text")
    question = task.reset(4, 0)
    problem = question[len("Work out ") : question.index(". You may")]
    observation, reward, terminated, _, _ = task.step(f"I will compute it.\ncalc: {problem} =")
    assert (reward, terminated) == (0.0, False)
    assert observation == [{"role": "tool", "content": shown(evaluate(problem))}]
    assert task.step("calc: import os")[0] == [
        {"role": "tool", "content": "error: this is not an arithmetic expression"}
    ]
    observation, reward, terminated, _, info = task.step("hm")
    assert (observation, reward, terminated) == (
        "Write a line 'calc: EXPRESSION' or a line 'answer: NUMBER'.",
        -0.1,
        False,
    )
    assert not info["is_action_valid"]
    observation, reward, terminated, _, info = task.step(f"**Answer:** {shown(evaluate(problem))}")
    assert (reward, terminated, info["success"]) == (1.0, True, True)
    assert info["metrics"] == {"calls": 2.0, "invalid": 1.0}


def test_the_dialogue_ends_without_an_answer():
    task = MathTool(style="text", calls=2)
    task.reset(0, 0)
    results = [task.step("calc: 1") for _ in range(3)]
    assert [result[2] for result in results] == [False, False, True]
    assert not results[-1][4]["success"]


@pytest.mark.parametrize("arguments", [{"style": "x"}, {"numbers": 1}, {"style": "text", "operations": 0}])
def test_bad_arguments(arguments):
    with pytest.raises(ValueError, match=r"or more|style is"):
        MathTool(**arguments)
