"""Arithmetic with a calculator: work out a problem with the tool, then give the answer.

Two styles of the same task:

* ``words`` (:class:`~rollart.data_plane.environment.math_keypad.Keypad`), for tiny models: the calculator is
  a keypad, an action is one key or a few;
* ``text`` (:class:`~rollart.data_plane.environment.math_dialogue.Dialogue`), for language models: the tool is
  called with ``calc: EXPRESSION`` and the answer given with ``answer: NUMBER``.

In both the calculator evaluates real expressions and the answer is verified exactly. Success is the right
answer after the tool was used, or without it in ``text``; rewards and instance spaces are described there.
"""

from __future__ import annotations

from typing import Literal

from rollart.data_plane.environment.env import Env, Observation, Split, StepResult
from rollart.data_plane.environment.math_dialogue import Dialogue
from rollart.data_plane.environment.math_keypad import Keypad


class MathTool(Env):
    """See the module docstring.

    Args:
        style: ``words`` or ``text``.
        numbers: ``words``: operands and results are 0 .. numbers - 1.
        operations: ``text``: operators in a problem.
        largest: ``text``: largest operand.
        calls: ``text``: tool calls that are answered; the episode terminates when there is no answer after them.
        credit: ``words``: partial credit of a perfect tool use; see the style's docstring.
        invalid_penalty: Subtracted for an answer that is no number, in ``text`` for any other message too.
        split: Which instances; given by the session.

    Raises:
        ValueError: an argument is out of range.
    """

    def __init__(
        self,
        style: Literal["words", "text"] = "words",
        numbers: int = 10,
        operations: int = 3,
        largest: int = 99,
        calls: int = 4,
        credit: float = 0.9,
        invalid_penalty: float = 0.1,
        split: Split | None = None,
    ) -> None:
        if style not in ("words", "text"):
            raise ValueError(f"style is words or text, not {style!r}")
        self._task: Keypad | Dialogue = (
            Keypad(numbers, credit, invalid_penalty, split)
            if style == "words"
            else Dialogue(operations, largest, calls, invalid_penalty, split)
        )

    @classmethod
    def words(cls, **args: object) -> list[str]:
        """All words of the ``words`` style.

        Raises:
            LookupError: the style is ``text``.
        """
        task = cls(**args)._task  # type: ignore[arg-type]
        if not isinstance(task, Keypad):
            message = "math_tool of style 'text' has no closed vocabulary: use style 'words'"
            raise LookupError(message)  # noqa: TRY004 - it is the style that has none
        return task.vocabulary()

    def reset(self, seed: int, task: int) -> Observation:
        return self._task.reset(seed)

    def step(self, action: str) -> StepResult:
        return self._task.step(action)

    def random_action(self, seed: int) -> str:
        return self._task.random_action(seed)
