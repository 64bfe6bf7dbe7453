"""The ``words`` style of ``math_tool``: a word problem and a calculator of four operator keys and digits.

A problem is ``sum 3 4``. The first operand is on the display; the policy presses an operator key and the
second operand (``add``, then ``4``), reads the result (``= 7``) and gives it as its answer (``7``). The keys
may come one by one or in one action (``add 4``); what follows the tool call in the same action is ignored,
because its result has not been read. A wrong key does not end the episode: the display shows ``err`` then,
and no answer is right.

The display has as many numbers as ``numbers``: sums wrap around as its last digit does, differences are
absolute.

Reward of an episode: 0.5 for the right answer, plus partial credit, together ``credit``: for an operator key
(1/18), the right one (5/18), an operand key (1/18), the right one (5/18), and for answering what the display
shows (6/18); minus ``invalid_penalty`` for an answer that is no number. Success is the right answer with a
result on the display.

Instances: 8 words and two operands, 800 with ten numbers; train and held-out ones are disjoint sets.
"""

from __future__ import annotations

import random
from typing import NamedTuple

from rollart.data_plane.environment.calculator import evaluate
from rollart.data_plane.environment.env import Split, StepResult
from rollart.data_plane.environment.instances import instance_of

EXPRESSIONS = {
    "add": "({a} + {b}) % {numbers}",
    "sub": "abs({a} - {b})",
    "max": "max({a}, {b})",
    "min": "min({a}, {b})",
}
"""What each operator key computes."""

MEANINGS = {
    "sum": "add",
    "plus": "add",
    "difference": "sub",
    "minus": "sub",
    "larger": "max",
    "most": "max",
    "smaller": "min",
    "least": "min",
}
"""Operator key by the word of a problem."""

RESULT, ERROR = "=", "err"

_ANSWER_REWARD = 0.5
_SHARES = {"operator": 1 / 18, "right operator": 5 / 18, "operand": 1 / 18, "right operand": 5 / 18, "reads": 6 / 18}


class Problem(NamedTuple):
    """One instance."""

    word: str
    first: int
    second: int


class Keypad:
    """See the module docstring."""

    def __init__(self, numbers: int, credit: float, invalid_penalty: float, split: Split | None) -> None:
        if numbers < 2:
            raise ValueError(f"numbers is {numbers}: 2 or more")
        self._numbers = numbers
        self._credit = credit
        self._invalid_penalty = invalid_penalty
        self._split = split
        self._digits = {str(number): number for number in range(numbers)}
        self._problem = Problem("", 0, 0)
        self._keys: list[str] = []
        self._display: int | None = None

    def vocabulary(self) -> list[str]:
        """All words that it shows or takes."""
        return [*MEANINGS, *EXPRESSIONS, RESULT, ERROR, *self._digits]

    def reset(self, seed: int) -> str:
        self._problem = instance_of(self._split, seed, self._draw, str)
        return f"{self._problem.word} {self._problem.first} {self._problem.second}"

    def step(self, action: str) -> StepResult:
        keys = action.split() or [""]
        if len(self._keys) == 2:
            return self._answer(keys[0])
        reward = 0.0
        valid = True
        for key in keys[: 2 - len(self._keys)]:
            paid, known = self._press(key)
            reward += paid
            valid = valid and known
        if len(self._keys) < 2:
            return "", reward, False, False, {"success": False, "is_action_valid": valid}
        self._display = self._compute()
        shown = ERROR if self._display is None else str(self._display)
        return f"{RESULT} {shown}", reward, False, False, {"success": False, "is_action_valid": valid}

    def random_action(self, seed: int) -> str:
        choices = list(self._digits) if self._keys else list(EXPRESSIONS)
        return random.Random(seed).choice(choices)

    def _draw(self, seed: int) -> Problem:
        source = random.Random(seed)
        word = source.choice(list(MEANINGS))
        return Problem(word, source.randrange(self._numbers), source.randrange(self._numbers))

    def _press(self, key: str) -> tuple[float, bool]:
        """The partial credit of a key, and whether there is one of that name here."""
        if self._keys:
            known, right = key in self._digits, self._digits.get(key) == self._problem.second
            part = "operand"
        else:
            known, right = key in EXPRESSIONS, key == MEANINGS[self._problem.word]
            part = "operator"
        self._keys.append(key)
        return self._credit * (_SHARES[part] * known + _SHARES[f"right {part}"] * right), known

    def _compute(self) -> int | None:
        operator, operand = self._keys
        if operator not in EXPRESSIONS or operand not in self._digits:
            return None
        return self._result(operator, self._digits[operand])

    def _result(self, operator: str, operand: int) -> int:
        expression = EXPRESSIONS[operator].format(a=self._problem.first, b=operand, numbers=self._numbers)
        return int(evaluate(expression))

    def _answer(self, word: str) -> StepResult:
        answer = self._digits.get(word)
        if answer is None:
            return "", -self._invalid_penalty, True, False, {"success": False, "is_action_valid": False}
        right = self._result(MEANINGS[self._problem.word], self._problem.second)
        success = self._display is not None and answer == right
        reward = self._credit * _SHARES["reads"] * (answer == self._display) + _ANSWER_REWARD * success
        return "", reward, True, False, {"success": success, "is_action_valid": True}
