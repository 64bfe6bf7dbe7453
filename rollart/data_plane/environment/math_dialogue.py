"""The ``text`` style of ``math_tool``: a problem in words, a calculator tool, an answer to verify.

The policy writes either ``calc: EXPRESSION`` and reads the tool's result in the next observation, or
``answer: NUMBER``, which ends the episode; the last such line counts. Anything else is told so.

Reward of an episode: 1 for the right answer, minus ``invalid_penalty`` for each message that is neither.
Success is the right answer.

Instances: with three operators and operands up to 99 far more than a run can draw; train and held-out ones
are disjoint sets.
"""

from __future__ import annotations

import random
import re

from rollart.data_plane.environment.calculator import CalculatorError, evaluate, shown
from rollart.data_plane.environment.env import Message, Split, StepResult
from rollart.data_plane.environment.instances import instance_of
from rollart.data_plane.reward.verifiers import numeric

_LINE = re.compile(r"^\W*(calc|answer)\W*?:\W?[ \t]*(.*)$", re.IGNORECASE | re.MULTILINE)

_SEARCHED = 4000
"""Characters at the end of a message that are searched for a line to act on."""

_RULES = (
    "Work out {problem}. You may use a calculator: write a line 'calc: EXPRESSION' with numbers, + - * / and "
    "parentheses, and you will be told the result. When you know it, write a line 'answer: NUMBER'."
)


class Dialogue:
    """See the module docstring."""

    def __init__(self, operations: int, largest: int, calls: int, invalid_penalty: float, split: Split | None) -> None:
        if operations < 1 or largest < 1 or calls < 0:
            raise ValueError(
                f"operations and largest are 1 or more and calls 0 or more, not {operations}, {largest} and {calls}"
            )
        self._operations = operations
        self._largest = largest
        self._calls = calls
        self._invalid_penalty = invalid_penalty
        self._split = split
        self._problem = ""
        self._counts = {"calls": 0.0, "invalid": 0.0}

    def reset(self, seed: int) -> str:
        self._problem = instance_of(self._split, seed, self._draw, str)
        return _RULES.format(problem=self._problem)

    def step(self, action: str) -> StepResult:
        lines = _LINE.findall(action[-_SEARCHED:])
        if not lines:
            self._counts["invalid"] += 1
            seen = "Write a line 'calc: EXPRESSION' or a line 'answer: NUMBER'."
            return self._reply(seen, -self._invalid_penalty, valid=False)
        kind, content = lines[-1]
        if kind.lower() == "answer":
            success = numeric(content, shown(evaluate(self._problem)))
            info = {"success": success, "is_action_valid": True, "metrics": dict(self._counts)}
            return "", float(success), True, False, info
        self._counts["calls"] += 1
        return self._reply([{"role": "tool", "content": _calculated(content)}], 0.0)

    def random_action(self, seed: int) -> str:
        return f"answer: {random.Random(seed).randint(-self._largest, self._largest)}"

    def _draw(self, seed: int) -> str:
        source = random.Random(seed)
        text = str(source.randint(1, self._largest))
        for _ in range(self._operations):
            text = f"{text} {source.choice('+-*')} {source.randint(1, self._largest)}"
            if source.random() < 0.5:
                text = f"({text})"
        return text

    def _reply(self, seen: str | list[Message], reward: float, *, valid: bool = True) -> StepResult:
        info = {"success": False, "is_action_valid": valid, "metrics": dict(self._counts)}
        over = self._counts["calls"] + self._counts["invalid"] > self._calls
        return seen, reward, over, False, info


def _calculated(expression: str) -> str:
    try:
        return shown(evaluate(expression.strip().strip("`'\"").rstrip("=").strip()))
    except CalculatorError as error:
        return f"error: {error}"
