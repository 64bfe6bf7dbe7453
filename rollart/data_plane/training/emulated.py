"""A trainer without a model, for virtual time and for tests of the control plane.

It keeps the trainer's contract (versions, refusal of a batch out of turn, snapshots, checksums) and takes
time by ``asyncio.sleep``. Its weights of version k are one tensor that holds k, published through a real
manifest, so that engines can check what they load.
"""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import msgspec
import numpy as np

from rollart.data_plane.training.advantages import trained_members
from rollart.data_plane.training.trainer import TrainerInfo
from rollart.data_plane.weights.layout import checksum_of_bytes, layout, version_checksum
from rollart.data_plane.weights.store import Bucket, Manifest, NamedBytes
from rollart.data_plane.worker import ActorTrain
from rollart.runtime.offload import offload
from rollart.types import TrainBatch, TrainReport, derive_seed


class EmulatedTimes(msgspec.Struct, frozen=True):
    """Mean seconds of each operation, and the relative spread of a uniform draw around it.

    ``report`` passes between the end of a train step and the caller's hearing of it.
    """

    train: float = 1.0
    publish: float = 0.1
    report: float = 0.0
    spread: float = 0.0


class EmulatedLearner(ActorTrain):
    """See the module docstring.

    Args:
        seed: Of the durations.
        times: How long things take.
    """

    def __init__(self, seed: int, times: EmulatedTimes) -> None:
        super().__init__()
        self._seed = seed
        self._times = times
        self._version = 0

    async def start(self, checkpoint: str) -> TrainerInfo:
        if checkpoint:
            self._version = int(Path(checkpoint).name.rpartition("_")[2])
        return TrainerInfo(self._version, 1, emulated_manifest(self._version).checksum, "emulated trainer", "none")

    async def train_step(self, batch: TrainBatch) -> TrainReport:
        if batch.index != self._version:
            raise ValueError(f"batch {batch.index} cannot be trained at version {self._version}")
        seconds = self._train_seconds(batch)
        await asyncio.sleep(seconds)
        self._version += 1
        await asyncio.sleep(self._draw("report", self._times.report))
        tokens = sum(group.members[each].generated_tokens for group in batch.groups for each in trained_members(group))
        return TrainReport(batch.index, self._version, {}, seconds, tokens)

    async def publish(self) -> Manifest:
        manifest = self._manifest(self._version)
        await asyncio.sleep(self._publish_seconds())
        return manifest

    async def retain(self, oldest: int) -> None:
        """Emulated versions take no space."""

    async def save(self, folder: str) -> None:
        await offload(lambda: Path(folder).mkdir(parents=True))

    def _train_seconds(self, batch: TrainBatch) -> float:
        return self._draw("train", self._times.train)

    def _publish_seconds(self) -> float:
        return self._draw("publish", self._times.publish)

    def _manifest(self, version: int) -> Manifest:
        return emulated_manifest(version)

    def _draw(self, what: str, mean: float) -> float:
        spread = self._times.spread
        source = random.Random(derive_seed(self._seed, what, self._version))
        return mean * source.uniform(1.0 - spread, 1.0 + spread)


def emulated_manifest(version: int) -> Manifest:
    """The manifest of an emulated version; its one tensor holds the version."""
    data = np.frombuffer(version.to_bytes(64, "little"), np.uint8)
    entries, size = layout([NamedBytes("version", "uint8", (64,), data)])
    checksum = checksum_of_bytes(data.tobytes())
    bucket = Bucket(f"emulated-{version}", 0, size, checksum)
    return Manifest(version, entries, (bucket,), size, version_checksum([checksum]))
