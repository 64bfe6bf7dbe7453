"""The environment interface: Gymnasium's shape, in text or chat messages, sync or async.

A user's environment is any object with these methods; it need not inherit from :class:`Env`.
``info`` may carry ``success`` (bool, the unshaped verdict), ``metrics`` (name to number) and
``is_action_valid`` (bool). An exception means infrastructure failure: it ends the trajectory as
``failed`` and is never a reward. Whatever a model writes is a normal step, so an action that cannot be
understood is answered, not raised.

A factory of environments (a class or a function) is called once for each episode with the domain's
``args``. If its signature names them, it is also given

* ``split``: ``"train"`` or ``"held_out"``, for environments that keep their instances apart themselves;
* ``episode``: an integer seed that differs between the members of a group, for what shall differ there.

A factory may have an attribute ``words``, a function of ``args`` that lists every word which the
environment emits or accepts: tiny word-level models get their vocabulary from it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable
from typing import Any, Literal

from rollart.types import LengthSpan

Message = dict[str, str]
"""``{"role": "user" | "tool" | ..., "content": text}``."""

Observation = str | list[Message] | LengthSpan
"""Text or messages; a length is what emulated environments of virtual time return."""

StepResult = tuple[Observation, float, bool, bool, dict[str, Any]]
"""observation, reward, terminated, truncated, info."""

Split = Literal["train", "held_out"]


class Env(ABC):
    """One live task instance: ``reset`` once, then ``step`` until terminated or truncated, then ``close``."""

    @abstractmethod
    def reset(self, seed: int, task: int) -> Observation | Awaitable[Observation]:
        """Start instance ``task`` of the domain's sequence; equal seeds give equal instances."""

    @abstractmethod
    def step(self, action: str) -> StepResult | Awaitable[StepResult]: ...

    def close(self) -> Awaitable[None] | None:
        """Free what ``reset`` took. Called exactly once, also after a failure."""
        return None

    def random_action(self, seed: int) -> str:
        """A uniformly random valid action, for the random policy that a trained one is compared with."""
        raise LookupError(f"{type(self).__name__} declares no random policy")
