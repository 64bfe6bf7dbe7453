"""Any Gymnasium-style text environment as an :class:`Env`.

The target is an import path to a class or factory of objects with ``reset(seed=...) -> (observation,
info)`` and ``step(action) -> (observation, reward, terminated, truncated, info)``. Observations that are
not text are shown with ``str``. If ``actions`` maps texts to the target's own actions, the last of these
texts in the policy's answer is taken; an answer without any is told so and the target is not stepped.
"""

from __future__ import annotations

import inspect
import random
import re
from collections.abc import Mapping, Sequence
from typing import Any

from rollart.data_plane.environment.env import Env, Observation, StepResult
from rollart.registry import import_path


class GymText(Env):
    """See the module docstring.

    Args:
        target: ``module:factory`` of the environment.
        kwargs: Its arguments.
        actions: Text to action, or a list of texts whose actions are 0, 1, ...; ``None`` hands the whole
            answer to the target.
        instruction: Comes before the first observation.
        invalid_penalty: Subtracted for an answer that names no action.

    Raises:
        LookupError: the target cannot be found.
        ValueError: ``actions`` is empty.
    """

    def __init__(
        self,
        target: str,
        kwargs: Mapping[str, Any] | None = None,
        actions: Mapping[str, Any] | Sequence[str] | None = None,
        instruction: str = "",
        invalid_penalty: float = 0.1,
    ) -> None:
        factory = import_path(target, "environment")
        if actions is not None and not actions:
            raise ValueError("actions is empty: list the texts that the policy may answer, or leave it out")
        named = actions if isinstance(actions, Mapping) else {text: i for i, text in enumerate(actions or ())}
        self._actions = {str(text).strip().lower(): value for text, value in named.items()}
        longest_first = sorted(self._actions, key=len, reverse=True)
        self._pattern = re.compile("|".join(rf"(?<!\w){re.escape(text)}(?!\w)" for text in longest_first))
        self._instruction = instruction
        self._invalid_penalty = invalid_penalty
        self._env = factory(**(kwargs or {}))
        self._seen = ""

    def reset(self, seed: int, task: int) -> Observation:
        reset = self._env.reset
        # Gymnasium's seeds fill 32 bits in many libraries.
        result = reset(seed=seed % 2**32) if _takes_seed(reset) else reset()
        observation = result[0] if isinstance(result, tuple) else result
        self._seen = _text(observation)
        return f"{self._instruction}\n{self._seen}" if self._instruction else self._seen

    def step(self, action: str) -> StepResult:
        chosen: Any = action
        if self._actions:
            said = self._pattern.findall(action.lower())
            if not said:
                known = ", ".join(self._actions)
                seen = f"{self._seen}\nThat is no action. Answer with one of: {known}."
                return seen, -self._invalid_penalty, False, False, {"is_action_valid": False}
            chosen = self._actions[said[-1]]
        observation, reward, terminated, truncated, info = self._env.step(chosen)
        self._seen = _text(observation)
        kept = {key: info[key] for key in ("success", "metrics", "is_action_valid") if key in (info or {})}
        return self._seen, float(reward), bool(terminated), bool(truncated), kept

    def close(self) -> None:
        if hasattr(self._env, "close"):
            self._env.close()

    def random_action(self, seed: int) -> str:
        """One of ``actions``; without them a sample of the target's text action space.

        Raises:
            LookupError: there is neither.
        """
        if self._actions:
            return random.Random(seed).choice(list(self._actions))
        if hasattr(self._env, "sample_random_action"):
            return str(self._env.sample_random_action())
        space = getattr(self._env, "action_space", None)
        if space is None:
            raise LookupError("gym_text without 'actions' has no random policy: the target has no action_space")
        space.seed(seed % 2**32)
        return str(space.sample())


def _takes_seed(reset: Any) -> bool:
    parameters = inspect.signature(reset).parameters
    return "seed" in parameters or any(item.kind is item.VAR_KEYWORD for item in parameters.values())


def _text(observation: Any) -> str:
    return observation if isinstance(observation, str) else str(observation)
