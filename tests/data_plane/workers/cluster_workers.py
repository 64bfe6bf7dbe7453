"""Worker classes of the Cluster tests, where a Ray process can import them."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable

import rollart as ra


class Member(ra.ActorGen):
    """Says who it is."""

    def __init__(self, index: int) -> None:
        if index < 0:
            raise LookupError(f"worker {index} has no model")
        self._index = index

    @ra.register(mode="execute_all")
    async def who(self, prefix: str = "") -> str:
        if prefix == f"fail-{self._index}":
            raise RuntimeError(f"{self._index} is out of order")
        return f"{prefix}{self._index}"

    @ra.hw_mapping(hw_affinity={"frozen_lake": "H800", "default": "H20"})
    def generate(self, prompt: str, *, tag_name: str = "default") -> tuple[int, str, str]:
        return self._index, prompt, tag_name

    def undeclared(self) -> None: ...


class Judge(ra.Reward):
    """Scores by a remote function."""

    reward_proxy: Callable[[list[int]], Awaitable[float]]

    @ra.register_serverless(attribute="reward_proxy", serverless_url="inline://cluster_workers:blocking_score")
    async def score(self, answer: list[int]) -> float:
        return await self.reward_proxy(answer)

    def attribute(self) -> str:
        return repr(vars(self))


class Unserved(ra.Reward):
    @ra.register_serverless(attribute="reward_proxy", serverless_url="fc://judge/score")
    async def score(self, answer: list[int]) -> float:
        return 0.0


class Clashing(ra.Reward):
    @ra.register(mode="execute_all")
    def create(self) -> None: ...


def blocking_score(answer: list[int]) -> float:
    return sum(answer) / 10


async def other_score(answer: list[int]) -> float:
    return -1.0


def failing_score(answer: list[int]) -> float:
    raise ConnectionError(f"no judge for {answer} in process {os.getpid() and 'x'}")
