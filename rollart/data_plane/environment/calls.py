"""How an environment is called, the same inline and in a child process.

What it returned is checked before anyone relies on it, and what it raised is told by its first cause.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from rollart.data_plane.environment.env import Observation, StepResult
from rollart.registry import first_cause
from rollart.types import LengthSpan

_SHOWN = 80
"""Characters of a wrong return value that a message shows."""


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


def checked_step(result: Any) -> StepResult:
    """What ``step`` returned, with built-in types: a finite reward, and in ``info`` only what the interface
    names (``success``, ``metrics``, ``is_action_valid``).

    Raises:
        InvalidReturn: it is something else.
    """
    if not isinstance(result, tuple) or len(result) != 5:
        raise InvalidReturn(
            f"must return (observation, reward, terminated, truncated, info), not {repr(result)[:_SHOWN]}"
        )
    observation, reward, terminated, truncated, info = result
    try:
        value = float(reward)
        reported = _reported(info) if info else {}
    except (AttributeError, TypeError, ValueError) as error:
        shown = f"reward {repr(reward)[:_SHOWN]} and info {repr(info)[:_SHOWN]}"
        raise InvalidReturn(f"must pay a number and report a dict of numbers as metrics, not {shown}") from error
    if not math.isfinite(value):
        raise InvalidReturn(f"must pay a finite reward, not {value}")
    return checked_observation(observation), value, bool(terminated), bool(truncated), reported


def _reported(info: dict[str, Any]) -> dict[str, Any]:
    reported: dict[str, Any] = {}
    if (success := info.get("success")) is not None:
        reported["success"] = bool(success)
    if metrics := info.get("metrics"):
        reported["metrics"] = {str(name): float(number) for name, number in metrics.items()}
    if "is_action_valid" in info:
        reported["is_action_valid"] = bool(info["is_action_valid"])
    return reported


def lacks_random_policy(method: str, error: BaseException) -> bool:
    """Whether ``random_action`` does not exist or says so, which no other environment of the kind would change.

    Only ``LookupError`` itself says so: a ``KeyError`` or ``IndexError`` is a fault of the method.
    """
    return method == "random_action" and type(error) is LookupError


def problem(method: str, error: BaseException) -> str:
    """What went wrong in ``method``, for the user."""
    if isinstance(error, InvalidReturn):
        return f"{method} {error}"
    return f"{method} raised {first_cause(error)}"
