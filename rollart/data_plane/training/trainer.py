"""The interface of a trainer: it owns the newest weights and turns W_k into W_{k+1}.

Who calls it: the training protocol, through the training Cluster. Calls are serial except
``publish``, which runs in the background while the next ``train_step`` computes: it works on a
snapshot taken when ``train_step`` returned.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path

import msgspec

from rollart.data_plane.weights.store import Manifest
from rollart.types import TrainBatch, TrainReport


class TrainerInfo(msgspec.Struct, frozen=True):
    """What the trainer holds after ``start`` or ``load``.

    Attributes:
        version: k of W_k.
        parameters: Number of parameters.
        checksum: Checksum of the weights, as a manifest of this version would have.
        description: The effective algorithm in words, for the user.
        forward: How rows go through the model, e.g. ``packed`` or ``padded``.
    """

    version: int
    parameters: int
    checksum: str
    description: str
    forward: str


class Trainer(ABC):
    """See the module docstring."""

    @abstractmethod
    def start(self, resume: Path | None) -> TrainerInfo:
        """Build or load the model and the optimizer; ``resume`` is a checkpoint folder."""

    @abstractmethod
    def train_step(self, batch: TrainBatch) -> TrainReport:
        """One iteration on ``batch``; afterwards the weights are W_{batch.index + 1}.

        Raises:
            ValueError: ``batch.index`` is not the present version (it was trained already, or one is missing).
            FloatingPointError: the loss or the gradient norm is not finite; the weights are unchanged.
        """

    @abstractmethod
    def publish(self) -> Manifest:
        """Push the snapshot of the newest version to the weight store."""

    @abstractmethod
    def retain(self, oldest: int) -> None:
        """Versions below ``oldest`` may leave the weight store."""

    @abstractmethod
    def save(self, folder: Path) -> None:
        """Write a Hugging Face model folder with the optimizer's state beside it, atomically (rename at the end)."""

    @abstractmethod
    def stop(self) -> None: ...
