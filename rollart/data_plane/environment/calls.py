"""How an environment is called, the same inline and in a child process.

What it returned is checked before anyone relies on it, and what it raised is told by its first cause.
"""

from __future__ import annotations

import math
import traceback
from collections.abc import Callable
from typing import Any

import msgspec

from rollart.data_plane.environment.env import Observation
from rollart.types import LengthSpan

_SHOWN = 80
"""Characters of a wrong return value that a message shows."""


class StepOutcome(msgspec.Struct, frozen=True):
    """What one step did.

    Attributes:
        observation: What the policy sees next.
        reward: Finite.
        terminated: The task is over.
        truncated: The environment's own limit cut the episode.
        success: The unshaped verdict so far; ``None`` where the task has none.
        metrics: Numbers the environment reports.
        valid: Whether the action could be understood.
    """

    observation: Observation
    reward: float
    terminated: bool
    truncated: bool
    success: bool | None = None
    metrics: dict[str, float] = {}
    valid: bool = True

    @property
    def done(self) -> bool:
        return self.terminated or self.truncated


class InvalidReturn(TypeError):
    """An environment returned something else than its interface says; the message completes "step ..."."""


def method_of(env: Any, name: str) -> Callable[..., Any]:
    """A method of an environment.

    Raises:
        LookupError: it has none of that name.
    """
    method = getattr(env, name, None)
    if method is None:
        raise LookupError(f"{type(env).__name__} has no method '{name}'")
    return method  # type: ignore[no-any-return]


def checked_observation(value: Any) -> Observation:
    """``value`` as an observation.

    Raises:
        InvalidReturn: it is none.
    """
    if isinstance(value, str | LengthSpan):
        return value
    if isinstance(value, list) and value and all(_is_message(item) for item in value):
        return value
    form = f"a tuple of {len(value)}" if isinstance(value, tuple) else repr(value)[:_SHOWN]
    hint = " (env 'gym_text' takes Gymnasium's environments)" if isinstance(value, tuple) else ""
    raise InvalidReturn(
        "must give an observation as text or as a list of {'role': ..., 'content': ...} messages with text "
        f"contents, not {form}{hint}"
    )


def _is_message(item: Any) -> bool:
    if not isinstance(item, dict) or "role" not in item or "content" not in item:
        return False
    return all(isinstance(key, str) and isinstance(text, str) for key, text in item.items())


def checked_outcome(result: Any) -> StepOutcome:
    """The five values of ``step`` as a :class:`StepOutcome`.

    Raises:
        InvalidReturn: they are something else.
    """
    if not isinstance(result, tuple) or len(result) != 5:
        raise InvalidReturn(
            f"must return (observation, reward, terminated, truncated, info), not {repr(result)[:_SHOWN]}"
        )
    observation, reward, terminated, truncated, info = result
    try:
        value = float(reward)
        if not info:
            success, metrics, valid = None, {}, True
        else:
            success = info.get("success")
            metrics = {str(name): float(number) for name, number in info.get("metrics", {}).items()}
            valid = bool(info.get("is_action_valid", True))
    except (AttributeError, TypeError, ValueError) as error:
        shown = f"reward {reward!r:.{_SHOWN}} and info {info!r:.{_SHOWN}}"
        raise InvalidReturn(f"must pay a number and report a dict of numbers as metrics, not {shown}") from error
    if not math.isfinite(value):
        raise InvalidReturn(f"must pay a finite reward, not {value}")
    return StepOutcome(
        checked_observation(observation),
        value,
        bool(terminated),
        bool(truncated),
        None if success is None else bool(success),
        metrics,
        valid,
    )


def problem(method: str, error: BaseException) -> str:
    """What went wrong in ``method``, for the user."""
    if isinstance(error, InvalidReturn):
        return f"{method} {error}"
    return f"{method} raised {first_cause(error)}"


def first_cause(error: BaseException) -> str:
    """The root of an exception chain and where it was raised: ``ValueError: bad map (lake.py:42 in reset)``."""
    root = error
    while (earlier := root.__cause__ or (None if root.__suppress_context__ else root.__context__)) is not None:
        root = earlier
    frames = traceback.extract_tb(root.__traceback__)
    where = f" ({frames[-1].filename.rpartition('/')[2]}:{frames[-1].lineno} in {frames[-1].name})" if frames else ""
    return f"{type(root).__name__}: {root}{where}"
