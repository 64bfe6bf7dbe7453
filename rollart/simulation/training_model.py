"""How long one train step takes on modelled hardware.

The operations of the batch's tokens (their products and their attention to what comes before), in as many forward
passes' worth as a step has, at the share of the devices' peak that the whole training stage reaches.
"""

from __future__ import annotations

from collections.abc import Iterable

from rollart.resource_plane.hardware import Hardware
from rollart.simulation.constants import TRAIN_REFERENCE, Constants
from rollart.simulation.shapes import ModelShape


def train_seconds(
    shape: ModelShape, hardware: Hardware, devices: int, constants: Constants, sequences: Iterable[int]
) -> float:
    """Seconds of a train step.

    Args:
        shape: The model; of experts only the active ones compute.
        hardware: Of each device.
        devices: Of the trainer.
        constants: Of the performance model.
        sequences: Tokens of each trajectory of the batch.
    """
    flops = sum(tokens * shape.flops_per_token(tokens / 2) for tokens in sequences)
    scaling: float = (devices / TRAIN_REFERENCE) ** -constants.train_scaling
    return constants.train_passes * flops / (devices * hardware.flops * constants.train_share * scaling)
