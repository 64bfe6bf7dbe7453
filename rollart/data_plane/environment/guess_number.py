"""Guess a number: find a hidden number of an interval; after each guess hear whether it is higher or lower.

Reward of an episode: 1 for finding it, plus partial credit ``halving`` times the mean, over the allowed
guesses, of how evenly each one split the interval that was left (1 in its middle, 0 at its ends; guesses
that were not needed count 1), minus ``outside_penalty`` for each guess outside the interval and
``invalid_penalty`` for each answer that is no number. Success is finding the number, unshaped.

Instances: an interval and the number in it. With ``numbers`` 20 and spans of 8 to 12 there are about 550, so
evaluation repeats some; train and held-out ones are disjoint sets.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from typing import Literal, NamedTuple

from rollart.data_plane.environment.env import Env, Observation, Split, StepResult
from rollart.data_plane.environment.instances import instance_of, interval

START, HIGHER, LOWER, BAD = "start", "higher", "lower", "bad"

_NUMBER = re.compile(r"(?<![\w.-])\d{1,9}(?![\w]|\.\d)", re.ASCII)


class Secret(NamedTuple):
    """One instance: the interval, ends included, and the number in it."""

    low: int
    high: int
    number: int


class GuessNumber(Env):
    """See the module docstring.

    Args:
        numbers: Intervals lie in 0 .. numbers - 1.
        span: Size of the interval, or ``[smallest, largest]``.
        guesses: Allowed guesses; without success the episode terminates after them.
        show_range: Tell the interval that is left with each answer; otherwise only the first one.
        style: ``words`` gives bare words and takes exactly one number, for tiny models; ``text`` explains the
            rules and takes the last number in the answer.
        halving, outside_penalty, invalid_penalty: See the module docstring.
        split: Which instances; given by the session.

    Raises:
        ValueError: an argument is out of range.
    """

    def __init__(
        self,
        numbers: int = 20,
        span: int | Sequence[int] = (8, 12),
        guesses: int = 4,
        show_range: bool = True,
        style: Literal["words", "text"] = "words",
        halving: float = 0.8,
        outside_penalty: float = 0.1,
        invalid_penalty: float = 0.2,
        split: Split | None = None,
    ) -> None:
        self._spans = interval("span", span)
        if self._spans[0] < 2 or self._spans[1] > numbers:
            raise ValueError(f"span is {span}: an interval has at least 2 and at most 'numbers' ({numbers}) numbers")
        if guesses < 1 or style not in ("words", "text"):
            raise ValueError(f"guesses is 1 or more and style is words or text, not {guesses} and {style!r}")
        self._numbers = numbers
        self._guesses = guesses
        self._show_range = show_range
        self._style = style
        self._halving = halving
        self._outside_penalty = outside_penalty
        self._invalid_penalty = invalid_penalty
        self._split = split
        self._secret = Secret(0, 0, 0)
        self._low = self._high = 0
        self._used = 0
        self._counts = {"guesses": 0.0, "invalid": 0.0, "outside": 0.0}

    @classmethod
    def words(cls, **args: object) -> list[str]:
        """All words of the ``words`` style.

        Raises:
            LookupError: the style is ``text``.
        """
        env = cls(**args)  # type: ignore[arg-type]
        if env._style == "text":
            raise LookupError("guess_number of style 'text' has no closed vocabulary: use style 'words'")
        return [START, HIGHER, LOWER, BAD, *map(str, range(env._numbers))]

    def reset(self, seed: int, task: int) -> Observation:
        self._secret = instance_of(self._split, seed, self._draw, str)
        self._low, self._high, _ = self._secret
        if self._style == "words":
            return f"{START} {self._low} {self._high}"
        return (
            f"I think of a whole number from {self._low} to {self._high}. You have {self._guesses} guesses; after each "
            "I say whether my number is higher or lower. Answer with one number."
        )

    def step(self, action: str) -> StepResult:
        self._used += 1
        self._counts["guesses"] += 1
        guess = self._read(action)
        if guess is None:
            self._counts["invalid"] += 1
            return self._reply(BAD, -self._invalid_penalty, valid=False)
        if not self._low <= guess <= self._high:
            self._counts["outside"] += 1
            return self._reply(BAD, -self._outside_penalty)
        credit = self._halving * self._evenness(guess) / self._guesses
        if guess == self._secret.number:
            unused = self._halving * (self._guesses - self._used) / self._guesses
            info = {"success": True, "is_action_valid": True, "metrics": dict(self._counts)}
            return "", 1.0 + credit + unused, True, False, info
        if guess < self._secret.number:
            self._low = guess + 1
            return self._reply(HIGHER, credit)
        self._high = guess - 1
        return self._reply(LOWER, credit)

    def random_action(self, seed: int) -> str:
        return str(random.Random(seed).randrange(self._numbers))

    def _draw(self, seed: int) -> Secret:
        source = random.Random(seed)
        span = source.randint(*self._spans)
        low = source.randint(0, self._numbers - span)
        return Secret(low, low + span - 1, source.randint(low, low + span - 1))

    def _read(self, action: str) -> int | None:
        if self._style == "words":
            word = action.strip()
            return int(word) if _NUMBER.fullmatch(word) else None
        found = _NUMBER.findall(action)
        return int(found[-1]) if found else None

    def _evenness(self, guess: int) -> float:
        half = (self._high - self._low) // 2
        return 1.0 if half == 0 else min(guess - self._low, self._high - guess) / half

    def _reply(self, word: str, reward: float, *, valid: bool = True) -> StepResult:
        info = {"success": False, "is_action_valid": valid, "metrics": dict(self._counts)}
        return self._told(word), reward, self._used >= self._guesses, False, info

    def _told(self, word: str) -> str:
        if self._style == "words":
            return f"{word} {self._low} {self._high}" if self._show_range else word
        left = f" It is from {self._low} to {self._high}." if self._show_range else ""
        said = "That is no number I can use." if word == BAD else f"My number is {word}."
        return f"{said}{left}"
