"""A ``math_tool`` whose episodes wait between their two actions until a version has been published.

For runs in one process: the test reports what was published, by :func:`publish`.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import Any

from rollart.data_plane.environment.env import Env, Observation, Split, StepResult
from rollart.data_plane.environment.math_tool import MathTool

_published: defaultdict[int, asyncio.Event] = defaultdict(asyncio.Event)


def publish(version: int) -> None:
    """Let the episodes go on that wait for this version."""
    _published[version].set()


def forget() -> None:
    """Nothing is published: a new run begins."""
    _published.clear()


class Held(Env):
    """See the module docstring.

    Args:
        until: For each task the version that its episodes wait for; 0 for none.
        split: Given by the session.
    """

    def __init__(self, until: list[int], split: Split | None = None) -> None:
        self._env = MathTool(split=split)
        self._until = until
        self._version = 0

    @staticmethod
    def words(**args: Any) -> list[str]:
        return MathTool.words()

    def reset(self, seed: int, task: int) -> Observation:
        self._version = self._until[task]
        return self._env.reset(seed, task)

    async def step(self, action: str) -> StepResult:
        if self._version:
            await _published[self._version].wait()
        return self._env.step(action)
