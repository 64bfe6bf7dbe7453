"""Plays episodes of one environment with a policy that needs no model, on behalf of ``rollart check-env``.

The environment lives where a run would put it (inline, or in a process of its own), with the same
deadlines, so that what hangs or crashes in a run does so here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from rollart.config.domains import DomainConfig
from rollart.data_plane.environment.env import Observation
from rollart.data_plane.environment.process import ProcessPool
from rollart.data_plane.environment.session import EnvironmentFailure, EnvSession, open_session
from rollart.types import LengthSpan, Purpose, derive_seed


class Episode(NamedTuple):
    """How one episode went; ``ended`` is False when the turn limit or the script's end cut it."""

    first: Observation
    turns: int
    reward: float
    success: bool | None
    ended: bool


class Playground:
    """Plays instances ``0, 1, ...`` of a domain.

    Args:
        domain: The environment with its arguments, deadlines and turn limit.
        seed: Root seed of the instances.
        held_out: Play held-out instances.
        policy: ``random``, ``scripted`` or ``human``.
        script: The actions of ``scripted``.
    """

    def __init__(self, domain: DomainConfig, seed: int, held_out: bool, policy: str, script: Sequence[str]) -> None:
        self._domain = domain
        self._seed = seed
        self._purpose = Purpose.EVAL if held_out else Purpose.TRAIN
        self._policy = policy
        self._script = list(script)

    async def play(self, episodes: int, shown: int) -> list[str]:
        """Play and print; returns what is wrong with the environment, one line each."""
        pool = ProcessPool(1)
        played: list[Episode] = []
        try:
            for task in range(episodes):
                played.append(await self._episode(task, pool, task < shown))
            problems = await self._repeatable(played[0], pool)
        except EnvironmentFailure as failure:
            return [f"{failure.kind.value} in instance {len(played)}: {failure}"]
        finally:
            await pool.close()
        _print_totals(played, self._domain.max_turns)
        return problems

    async def _episode(self, task: int, pool: ProcessPool, shown: bool) -> Episode:
        session = open_session(self._domain, purpose=self._purpose, episode=0, pool=pool)
        try:
            first = observation = await session.reset(self._instance_seed(task), task)
            if shown:
                print(f"--- instance {task}\n{as_text(observation)}")
            total, success, turns, ended = 0.0, None, 0, False
            while not ended and turns < self._domain.max_turns:
                action = await self._action(session, task, turns)
                if action is None:
                    break
                observation, reward, terminated, truncated, info = await session.step(action)
                turns += 1
                total += reward
                success = info.get("success", success)
                ended = terminated or truncated
                if shown or self._policy == "human":
                    print(f"> {action}\n{as_text(observation)}\n  reward {reward:g}")
        finally:
            await session.close()
        return Episode(first, turns, total, success, ended)

    async def _action(self, session: EnvSession, task: int, turn: int) -> str | None:
        """The policy's next action; ``None`` when the script is over."""
        if self._policy == "random":
            return await session.random_action(derive_seed(self._seed, "random action", task, turn))
        if self._policy == "scripted":
            return self._script[turn] if turn < len(self._script) else None
        try:
            return await asyncio.to_thread(input, "> ")
        except EOFError:
            return None

    async def _repeatable(self, known: Episode, pool: ProcessPool) -> list[str]:
        """Groups need instances that are equal for equal seeds."""
        session = open_session(self._domain, purpose=self._purpose, episode=1, pool=pool)
        try:
            again = await session.reset(self._instance_seed(0), 0)
        finally:
            await session.close()
        if again == known.first:
            return []
        return [
            "reset gives another observation for the same seed and task, so members of a group would play "
            "different instances: derive all randomness of the instance from the seed"
        ]

    def _instance_seed(self, task: int) -> int:
        return derive_seed(self._seed, self._purpose.value, task)


def _print_totals(played: list[Episode], max_turns: int) -> None:
    verdicts = [episode.success for episode in played if episode.success is not None]
    success = f"{sum(verdicts) / len(verdicts):.3f}" if verdicts else "not reported"
    cut = sum(not episode.ended for episode in played)
    print(
        f"--- {len(played)} episodes: success {success}, mean reward {_mean([e.reward for e in played]):.3f}, "
        f"mean turns {_mean([float(e.turns) for e in played]):.1f}, {cut} cut by the limit of {max_turns} turns or by "
        "the end of the script"
    )


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def as_text(observation: Observation) -> str:
    """An observation for the terminal."""
    if isinstance(observation, LengthSpan):
        return f"({len(observation)} tokens, lengths only)"
    if isinstance(observation, str):
        return observation
    return "\n".join(f"[{message['role']}] {message['content']}" for message in observation)
