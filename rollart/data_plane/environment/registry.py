"""The environments that a configuration can name, and how one is made from a domain's settings.

``ENVIRONMENTS`` holds the built-in task families; a user's own is named by its import path. Sessions make
one environment for each episode through :func:`make_env`; ``rollart plan`` and ``rollart check-env`` refuse
bad names and arguments early through :func:`check_domain`.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal

from rollart.registry import Registry, first_cause
from rollart.types import Purpose

if TYPE_CHECKING:  # child processes start faster without the configuration's libraries
    from rollart.config.domains import DomainConfig

Factory = Callable[..., Any]
Isolation = Literal["inline", "process"]

_HERE = "rollart.data_plane.environment"

ENVIRONMENTS: Registry[Factory] = Registry(
    "environment",
    {
        "frozen_lake": f"{_HERE}.frozen_lake:FrozenLake",
        "guess_number": f"{_HERE}.guess_number:GuessNumber",
        "math_tool": f"{_HERE}.math_tool:MathTool",
        "prompt_answer": f"{_HERE}.prompt_answer:PromptAnswer",
        "gym_text": f"{_HERE}.gym_text:GymText",
        "emulated": f"{_HERE}.emulated:Emulated",
    },
)

DESCRIPTIONS = {
    "frozen_lake": "cross a random frozen lake without falling in",
    "guess_number": "find a hidden number from 'higher' and 'lower'",
    "math_tool": "solve arithmetic problems with a calculator",
    "prompt_answer": "answer the prompts of a JSONL file",
    "gym_text": "any Gymnasium-style text environment, by import path",
    "emulated": "lengths and latencies only, for virtual time",
}
"""What ``rollart check-env`` says of each built-in environment."""

_USER_CODE_ARGUMENTS = {"gym_text": "target", "prompt_answer": "verifier"}
"""The argument of a built-in environment that may name a user's code."""

_ONLY_LOOKS_IT_UP = frozenset({"prompt_answer"})
"""Those of them that do not run the user's code when they are made."""


def default_isolation(name: str, args: Mapping[str, Any]) -> Isolation:
    """Built-in environments run inline; users' code, also inside a built-in one, in a process of its own."""
    path = name if ":" in name else str(args.get(_USER_CODE_ARGUMENTS.get(name, ""), ""))
    return "process" if ":" in path and not path.startswith("rollart.") else "inline"


def make_env(name: str, args: Mapping[str, Any], purpose: Purpose, episode: int) -> Any:
    """A fresh environment for one episode.

    Raises:
        LookupError: no such environment, module or attribute.
        Exception: whatever the factory raises.
    """
    factory = ENVIRONMENTS.get(name)
    offered = {"split": "train" if purpose is Purpose.TRAIN else "held_out", "episode": episode}
    wanted = {key: value for key, value in offered.items() if key in _parameters(factory) and key not in args}
    return factory(**args, **wanted)


@lru_cache(maxsize=256)
def _parameters(factory: Factory) -> frozenset[str]:
    return frozenset(inspect.signature(factory).parameters)


def check_domain(config: DomainConfig) -> None:
    """Refuse an environment that cannot be made from its settings, before anything starts.

    A built-in environment is made once, so that its values are checked too; a user's code is only looked up,
    and a factory's arguments compared with its signature.

    Raises:
        ValueError: what is wrong with ``env`` or ``args`` and what to do.
    """
    try:
        factory = ENVIRONMENTS.get(config.env)
    except Exception as error:
        if type(error) is LookupError:
            raise ValueError(str(error)) from error
        raise ValueError(f"environment '{config.env}' cannot be imported: {first_cause(error)}") from error
    try:
        parameters = inspect.signature(factory).parameters
    except TypeError as error:
        raise ValueError(f"environment '{config.env}' is not a class or function: {error}") from error
    if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        for key in config.args:
            if key not in parameters:
                raise ValueError(_unknown_argument(config.env, key, list(parameters)))
    for key, parameter in parameters.items():
        required = parameter.default is parameter.empty and parameter.kind not in (
            parameter.VAR_KEYWORD,
            parameter.VAR_POSITIONAL,
        )
        if required and key not in config.args and key not in ("split", "episode"):
            raise ValueError(f"environment '{config.env}' needs the argument '{key}': add it under 'args'")
    inline = default_isolation(config.env, config.args) == "inline"
    if config.env in ENVIRONMENTS and (inline or config.env in _ONLY_LOOKS_IT_UP):
        try:
            for purpose in Purpose:
                make_env(config.env, config.args, purpose, 0)
        except Exception as error:
            plain = isinstance(error, LookupError | OSError | TypeError | ValueError)
            raise ValueError(f"environment '{config.env}': {error if plain else first_cause(error)}") from error


def _unknown_argument(name: str, key: str, valid: list[str]) -> str:
    near = difflib.get_close_matches(key, valid, n=1)
    hint = f"did you mean '{near[0]}'?" if near else f"valid arguments: {', '.join(valid) or 'none'}"
    return f"environment '{name}' has no argument '{key}': {hint}"
