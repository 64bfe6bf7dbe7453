"""What befalls the workers of a virtual job from outside, at moments that a test chooses.

Calls of the trainer and the engines can be held up until some time, steps of the environments can be slowed down or
made to fail. One weather for each process, since workers are made from arguments that cross a codec.
"""

from __future__ import annotations

import asyncio
import random
from typing import Any

from rollart.data_plane.environment.emulated import Emulated
from rollart.data_plane.environment.env import StepResult
from rollart.data_plane.generation.emulated_models import EmulatedLengths, EmulatedSpeed
from rollart.data_plane.generation.engine import UpdateReport
from rollart.data_plane.generation.worker import EmulatedGenerator
from rollart.data_plane.training.emulated import EmulatedLearner
from rollart.data_plane.weights.store import Manifest
from rollart.types import GenerationResult, TrainBatch, TrainReport

STALLS = ("train_step", "publish", "suspend", "prefetch", "update", "resume")
"""Calls that can be held up."""


class Weather:
    """See the module docstring.

    Attributes:
        until: When each held-up call goes on, in virtual seconds.
        step_seconds: By how much longer a step of an environment takes.
        failing: How many of the next steps raise.
        losing: How many of the next answers of engines nobody ever gets.
    """

    def __init__(self) -> None:
        self.until: dict[str, float] = {}
        self.step_seconds = 0.0
        self.failing = 0
        self.losing = 0

    def clear(self) -> None:
        self.__init__()  # type: ignore[misc]

    async def passes(self, what: str) -> None:
        """Wait until ``what`` is held up no more, as it looks now."""
        await asyncio.sleep(max(0.0, self.until.get(what, 0.0) - asyncio.get_running_loop().time()))


WEATHER = Weather()


class Outdoors(Emulated):
    """An emulated environment in the weather."""

    def __init__(self, episode: int = 0, **args: Any) -> None:
        super().__init__(episode=episode, **args)

    async def step(self, action: str) -> StepResult:
        if WEATHER.step_seconds > 0:
            await asyncio.sleep(WEATHER.step_seconds)
        if WEATHER.failing > 0:
            WEATHER.failing -= 1
            raise RuntimeError("struck by lightning")
        return await super().step(action)


class OutdoorLearner(EmulatedLearner):
    """An emulated trainer in the weather."""

    async def train_step(self, batch: TrainBatch) -> TrainReport:
        await WEATHER.passes("train_step")
        return await super().train_step(batch)

    async def publish(self) -> Manifest:
        await WEATHER.passes("publish")
        return await super().publish()


class OutdoorGenerator(EmulatedGenerator):
    """An emulated engine in the weather.

    Args:
        lost: Share of its answers that nobody ever gets; the other arguments are those of any emulated engine.
    """

    def __init__(
        self,
        config_json: str,
        number: int,
        checksum: str,
        speed: EmulatedSpeed,
        lengths: EmulatedLengths,
        lost: float,
    ) -> None:
        super().__init__(config_json, number, checksum, speed, lengths)
        self._losses = random.Random(number)
        self._lost = lost

    async def results(self, max_wait: float) -> list[GenerationResult]:
        return [answer for answer in await super().results(max_wait) if not self._loses()]

    def _loses(self) -> bool:
        if WEATHER.losing > 0:
            WEATHER.losing -= 1
            return True
        return self._losses.random() < self._lost

    async def suspend(self) -> None:
        await WEATHER.passes("suspend")
        await super().suspend()

    async def prefetch(self, manifest: Manifest) -> None:
        await WEATHER.passes("prefetch")
        await super().prefetch(manifest)

    async def update(self, version: int) -> UpdateReport:
        await WEATHER.passes("update")
        return await super().update(version)

    async def resume(self) -> None:
        await WEATHER.passes("resume")
        await super().resume()
