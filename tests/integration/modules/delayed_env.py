"""Any built-in environment behind random real delays, drawn from a seed and the episode."""

from __future__ import annotations

import asyncio
import random
from typing import Any

from rollart.data_plane.environment.env import Env, Observation, Split, StepResult
from rollart.data_plane.environment.registry import ENVIRONMENTS


class Delayed(Env):
    """Its ``reset`` and ``step`` take up to ``longest`` seconds more; what they return is the environment's own.

    Args:
        env: Name of the built-in environment.
        delays: Seed of the delays.
        longest: Longest delay in seconds.
        args: Arguments of the built-in environment.
        split, episode: Given by the session.
    """

    def __init__(self, env: str, delays: int, longest: float, args: dict[str, Any], split: Split, episode: int) -> None:
        self._env = ENVIRONMENTS.get(env)(**args, split=split)
        self._draw = random.Random(delays ^ episode)
        self._longest = longest

    @staticmethod
    def words(env: str, delays: int, longest: float, args: dict[str, Any]) -> list[str]:
        factory: Any = ENVIRONMENTS.get(env)
        words: list[str] = factory.words(**args)
        return words

    async def reset(self, seed: int, task: int) -> Observation:
        await self._delay()
        observation: Observation = self._env.reset(seed, task)
        return observation

    async def step(self, action: str) -> StepResult:
        await self._delay()
        result: StepResult = self._env.step(action)
        return result

    async def _delay(self) -> None:
        # Half of the calls take a tenth of the time, so that some episodes are far ahead of others.
        await asyncio.sleep(self._longest * self._draw.random() * self._draw.choice((0.1, 1.0)))
