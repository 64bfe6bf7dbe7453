"""The training Worker: a trainer behind the calls that cross a process border.

Torch is imported when the worker starts, so the class can be named in processes that must stay light.
Steps run off the event loop, one at a time; ``publish`` may overlap the next step. Called by the
TrainingLoop, the checkpoints and the Job.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rollart.config.config import Config
from rollart.data_plane.declarations import register
from rollart.data_plane.rendering.words import vocabulary_of
from rollart.data_plane.training.trainer import TrainerInfo
from rollart.data_plane.weights.shared_memory import SharedMemoryWriter
from rollart.data_plane.weights.store import Manifest
from rollart.data_plane.worker import ActorTrain
from rollart.runtime.offload import offload
from rollart.types import TrainBatch, TrainReport, derive_seed

if TYPE_CHECKING:
    from rollart.data_plane.training.torch_trainer import TorchTrainer


class Learner(ActorTrain):
    """The trainer that the configuration names.

    Args:
        config_json: The configuration.
        model_folder: Where a tiny model is built if ``model.path`` is not set.
        store_run: Name of the run in the weight store.
        store_fallback: Folder for weights that do not fit into shared memory.
    """

    def __init__(self, config_json: str, model_folder: str, store_run: str, store_fallback: str) -> None:
        super().__init__()
        self._config = Config.model_validate_json(config_json)
        self._folder = Path(model_folder)
        self._writer = SharedMemoryWriter(store_run, self._config.weights.bucket_bytes, Path(store_fallback))
        self._trainer: TorchTrainer | None = None
        self._turn = asyncio.Lock()

    async def prepare(self) -> str:
        """Make sure that the model exists on this machine; returns its absolute folder.

        Raises:
            ModelError: there is no such model, or it cannot be fetched or built; the message says what to change.
            RenderingError: a domain gives no vocabulary for the tiny model.
        """
        if self._config.model.path is not None:
            return await offload(_find_model, self._config.model.path)
        if not (self._folder / "config.json").is_file():
            await offload(_build_tiny_model, self._config, self._folder)
        return str(self._folder.absolute())

    async def start(self, checkpoint: str) -> TrainerInfo:
        """Load the model, or continue from a checkpoint folder."""
        model = await self.prepare()
        self._trainer = await offload(_make_trainer, self._config, model, self._writer)
        return await offload(self._trainer.start, Path(checkpoint) if checkpoint else None)

    @register(mode="execute_all")
    async def train_step(self, batch: TrainBatch) -> TrainReport:
        report: TrainReport = await self._in_turn(partial(self._started.train_step, batch))
        return report

    async def publish(self) -> Manifest:
        return await offload(self._started.publish)

    async def retain(self, oldest: int) -> None:
        await offload(self._started.retain, oldest)

    @register(mode="execute_all")
    async def save(self, folder: str) -> None:
        await self._in_turn(partial(self._started.save, Path(folder)))

    async def stop(self) -> None:
        """Free the weight store, then wait for the step or the checkpoint that is under way."""
        if self._trainer is not None:
            self._trainer.stop()
        else:
            self._writer.close()
        async with self._turn:
            pass

    async def _in_turn(self, work: Callable[[], Any]) -> Any:
        """Run what reads or writes the trainer's state. Its turn lasts until it is done, also when the caller has
        given up: a checkpoint must not be taken in the middle of a step."""
        await self._turn.acquire()
        running = asyncio.ensure_future(offload(work))
        running.add_done_callback(self._turn_ended)
        return await asyncio.shield(running)

    def _turn_ended(self, work: asyncio.Future[Any]) -> None:
        self._turn.release()
        if not work.cancelled():
            work.exception()  # seen here, should the caller have given up

    @property
    def _started(self) -> TorchTrainer:
        if self._trainer is None:
            raise RuntimeError("the trainer has not been started: await start() first")
        return self._trainer


def _make_trainer(config: Config, model: str, writer: SharedMemoryWriter) -> TorchTrainer:
    from rollart.data_plane.training.torch_trainer import TorchTrainer

    return TorchTrainer(config, model, writer)


def _find_model(path: str) -> str:
    from rollart.data_plane.training.models import model_folder

    return str(model_folder(path))


def _build_tiny_model(config: Config, folder: Path) -> None:
    from rollart.data_plane.training.models import build_tiny_model

    seed = derive_seed(config.run.seed, "model")
    build_tiny_model(config.model.tiny, vocabulary_of(config.domains), seed, folder)
