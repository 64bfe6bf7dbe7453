"""The generation Workers: an engine behind the calls that cross a process border.

Commands and answers travel in batches (``post``, ``results``); the control calls of the update protocol
are the engine's own. Called by the LLMProxy alone.
"""

from __future__ import annotations

from pathlib import Path

from rollart.config.config import Config
from rollart.config.sizes import derived_sizes
from rollart.data_plane.generation.emulated import EmulatedCore
from rollart.data_plane.generation.emulated_models import EmulatedLengths, EmulatedSpeed
from rollart.data_plane.generation.engine import Engine, EngineInfo, EngineStats, UpdateReport
from rollart.data_plane.generation.registry import EngineSetup, build_engine
from rollart.data_plane.generation.shell import EngineShell
from rollart.data_plane.weights.shared_memory import SharedMemoryReader
from rollart.data_plane.weights.store import Manifest
from rollart.data_plane.worker import ActorGen
from rollart.types import EngineAddress, GenerationRequest, GenerationResult, TrajectoryId


class EngineWorker(ActorGen):
    """A Worker around any engine.

    Args:
        engine: Not started yet.
    """

    def __init__(self, engine: Engine) -> None:
        super().__init__()
        self._engine = engine

    async def start(self) -> EngineInfo:
        return await self._engine.start()

    async def post(
        self, requests: list[GenerationRequest], aborts: list[TrajectoryId], releases: list[TrajectoryId]
    ) -> None:
        """Queue commands; they take effect between two steps, in this order."""
        if requests:
            self._engine.submit(requests)
        if aborts:
            self._engine.abort(aborts)
        if releases:
            self._engine.release(releases)

    async def results(self, max_wait: float) -> list[GenerationResult]:
        return await self._engine.results(max_wait)

    async def suspend(self) -> None:
        await self._engine.suspend()

    async def prefetch(self, manifest: Manifest) -> None:
        await self._engine.prefetch(manifest)

    async def update(self, version: int) -> UpdateReport:
        return await self._engine.update(version)

    async def resume(self) -> None:
        await self._engine.resume()

    async def stats(self) -> EngineStats:
        return self._engine.stats()

    async def stop(self) -> None:
        await self._engine.stop()


class Generator(EngineWorker):
    """The engine that the configuration names.

    Args:
        config_json: The configuration.
        model: Folder of the policy, as the training Worker found it.
        number: Which of the run's engines this is.
        store_run, store_fallback: As the trainer's weight writer has them.
    """

    def __init__(self, config_json: str, model: str, number: int, store_run: str, store_fallback: str) -> None:
        config = Config.model_validate_json(config_json)
        context = derived_sizes(config).longest_context
        setup = EngineSetup(EngineAddress(number), model, config.run.seed, 0, config.weights.bucket_bytes, context)
        super().__init__(build_engine(config.engine, setup, SharedMemoryReader(store_run, Path(store_fallback))))


class EmulatedGenerator(EngineWorker):
    """An engine of lengths and durations, for virtual time and control-plane tests.

    Args:
        config_json: The configuration; of ``engine`` the sizes are used.
        number: Which of the run's engines this is.
        checksum: Of the weights that the trainer starts from.
        speed, lengths: The model of its durations and token counts.
    """

    def __init__(
        self, config_json: str, number: int, checksum: str, speed: EmulatedSpeed, lengths: EmulatedLengths
    ) -> None:
        config = Config.model_validate_json(config_json)
        core = EmulatedCore(
            EngineAddress(number),
            config.run.seed,
            speed,
            lengths,
            max_rows=config.engine.max_rows,
            max_sessions=config.engine.max_sessions,
            max_context=config.engine.max_context or derived_sizes(config).longest_context,
            checksum=checksum,
        )
        super().__init__(EngineShell(lambda: core))
