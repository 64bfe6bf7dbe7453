"""Workers that keep what a test wants to see, for runs in one process."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np

from rollart.data_plane.generation.worker import Generator
from rollart.data_plane.training.worker import Learner
from rollart.data_plane.weights.shared_memory import SharedMemoryReader
from rollart.data_plane.weights.store import Manifest

published: dict[int, tuple[Manifest, np.ndarray]] = {}
"""Every version that a KeepingLearner has published: its manifest and flattened weights."""

BUSY_SECONDS = 30.0


class KeepingLearner(Learner):
    """Keeps the weights of every version, as an engine would read them from the store."""

    def __init__(self, config_json: str, model_folder: str, store_run: str, store_fallback: str) -> None:
        super().__init__(config_json, model_folder, store_run, store_fallback)
        self._reader = SharedMemoryReader(store_run, Path(store_fallback))

    async def publish(self) -> Manifest:
        manifest = await super().publish()
        published[manifest.version] = manifest, self._reader.pull(manifest)
        return manifest


class BusyGenerator(Generator):
    """Has a version only while it generates, so that the update finds actions in progress."""

    async def prefetch(self, manifest: Manifest) -> None:
        await super().prefetch(manifest)
        before = self._engine.stats().generated_tokens
        async with asyncio.timeout(BUSY_SECONDS):
            while not self._generates_since(before):  # noqa: ASYNC110 - the engine steps as often as this yields
                await asyncio.sleep(0)

    def _generates_since(self, tokens: int) -> bool:
        stats = self._engine.stats()
        return stats.running > 0 and stats.generated_tokens > tokens
