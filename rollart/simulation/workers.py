"""The modelled Workers of a simulated run: engines and a trainer that take the time their hardware would.

They are the Workers of a real run around cores without a model, so the control plane cannot tell them apart: a call
of ``publish``, ``prefetch``, ``update`` or ``train_step`` takes as long as the performance model says, on the clock
of the running loop: virtual in a simulation, real on the actors of an emulation. The environment hosts are in
:mod:`rollart.simulation.environment_parts`.
"""

from __future__ import annotations

import asyncio
import random

from rollart.config.draw import sampler
from rollart.config.simulation import SimulatedConfig
from rollart.config.sizes import derived_sizes
from rollart.data_plane.generation.emulated import EmulatedCore
from rollart.data_plane.generation.engine import UpdateReport
from rollart.data_plane.generation.shell import EngineShell
from rollart.data_plane.generation.worker import EngineWorker
from rollart.data_plane.training.emulated import EmulatedLearner, EmulatedTimes, emulated_manifest
from rollart.data_plane.weights.store import Manifest
from rollart.resource_plane.hardware import hardware
from rollart.simulation.constants import Constants
from rollart.simulation.crossing import configuration
from rollart.simulation.engine_model import EngineModel
from rollart.simulation.links import broadcast_seconds, kv_seconds, pull_seconds, push_seconds, swap_seconds
from rollart.simulation.shapes import shape
from rollart.simulation.training_model import train_seconds
from rollart.types import EngineAddress, GenerationRequest, Phase, TrainBatch, TrajectoryId, derive_seed


class ActionLengths:
    """How many tokens each action has, by its domain's workload; drawn from seed, trajectory and length alone."""

    def __init__(self, config: SimulatedConfig) -> None:
        self._samplers = {name: sampler(load.action) for name, load in config.simulation.workloads.items()}

    def draw(self, seed: int, trajectory: TrajectoryId, length: int) -> int:
        """The number of tokens that the trajectory generates after ``length`` tokens of history."""
        source = random.Random(derive_seed(seed, "action", str(trajectory), length))
        return max(1, round(self._samplers[trajectory.domain](source)))


def simulated_core(config: SimulatedConfig, number: int, hardware_class: str) -> EmulatedCore:
    """The core of an engine on devices of a class.

    Raises:
        ValueError: the model is unknown, or does not fit the engine.
    """
    constants = Constants.with_overrides(config.simulation.constants)
    model = shape(config.simulation.model)
    return EmulatedCore(
        EngineAddress(number),
        config.run.seed,
        EngineModel(model, hardware(hardware_class), config.engine.devices, constants),
        ActionLengths(config),
        max_rows=config.engine.max_rows,
        max_sessions=config.engine.max_sessions,
        max_context=derived_sizes(config).longest_context,
        checksum=emulated_manifest(0).checksum,
    )


class SimulatedGenerator(EngineWorker):
    """A modelled engine.

    Args:
        config_json: The simulated run.
        number: Which of its engines this is.
        hardware_class: Of its devices.
    """

    def __init__(self, config_json: str, number: int, hardware_class: str) -> None:
        config = configuration(config_json)
        constants = Constants.with_overrides(config.simulation.constants)
        model, devices = shape(config.simulation.model), config.engine.devices
        core = simulated_core(config, number, hardware_class)
        super().__init__(EngineShell(lambda: core))
        self._shape, self._constants = model, constants
        self._fetching: dict[TrajectoryId, tuple[GenerationRequest, asyncio.TimerHandle]] = {}
        """Requests whose prompt another engine has computed, until its keys and values are here."""
        if config.simulation.network.same_cluster:
            self._pull = self._swap = 0.0  # the broadcast that published the version has written it in place
        else:
            self._pull = pull_seconds(model.weight_bytes, constants)
            self._swap = swap_seconds(model.weight_bytes, devices, constants)

    async def post(
        self, requests: list[GenerationRequest], aborts: list[TrajectoryId], releases: list[TrajectoryId]
    ) -> None:
        loop = asyncio.get_running_loop()
        for request in requests:
            if request.phase is Phase.DECODE:
                # what precedes the new tokens has been here since the turn before
                seconds = kv_seconds(len(request.new), self._shape, self._constants)
                self._fetching[request.trajectory] = (request, loop.call_later(seconds, self._fetched, request))
        for trajectory in (*aborts, *releases):
            if trajectory in self._fetching:
                request, timer = self._fetching[trajectory]
                timer.cancel()
                self._fetched(request)
        at_hand = [request for request in requests if request.phase is not Phase.DECODE]
        await super().post(at_hand, aborts, releases)

    def _fetched(self, request: GenerationRequest) -> None:
        """The keys and values of a prompt are here."""
        del self._fetching[request.trajectory]
        self._engine.submit([request])

    async def stop(self) -> None:
        for _, timer in self._fetching.values():
            timer.cancel()
        await super().stop()

    async def prefetch(self, manifest: Manifest) -> None:
        await asyncio.sleep(self._pull)
        await super().prefetch(manifest)

    async def update(self, version: int) -> UpdateReport:
        await asyncio.sleep(self._swap)
        return await super().update(version)


class SimulatedLearner(EmulatedLearner):
    """A modelled trainer.

    Args:
        config_json: The simulated run.
        hardware_class: Of its devices.
    """

    def __init__(self, config_json: str, hardware_class: str) -> None:
        config = configuration(config_json)
        super().__init__(config.run.seed, EmulatedTimes())
        self._constants = Constants.with_overrides(config.simulation.constants)
        self._shape = shape(config.simulation.model)
        self._hardware = hardware(hardware_class)
        self._devices = config.training.devices
        size = self._shape.weight_bytes
        same_cluster = config.simulation.network.same_cluster
        self._push = broadcast_seconds(size, self._constants) if same_cluster else push_seconds(size, self._constants)

    def _train_seconds(self, batch: TrainBatch) -> float:
        tokens = [member.total_tokens for group in batch.groups for member in group.members]
        return train_seconds(self._shape, self._hardware, self._devices, self._constants, tokens)

    def _publish_seconds(self) -> float:
        return self._push
