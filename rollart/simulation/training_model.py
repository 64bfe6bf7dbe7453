"""How long a train step takes. Called by the simulated learner."""

from __future__ import annotations

from collections.abc import Sequence

from rollart.resource_plane.hardware import Hardware
from rollart.simulation.constants import Constants
from rollart.simulation.shapes import ModelShape

PROFILED_DEVICES = 32
"""Devices of the profile that the efficiency is fitted to."""


def train_flops(shape: ModelShape, constants: Constants, tokens: Sequence[int]) -> float:
    """Operations of a step over sequences of these lengths.

    Each token passes the weights that are active for it, and attends to those before it in its sequence. A backward
    pass counts as two forward passes.
    """
    forward = sum(
        length * shape.flops_per_token() + shape.attention_flops(length * (length + 1) / 2) for length in tokens
    )
    return constants.train_passes * forward


def train_seconds(
    shape: ModelShape, hardware: Hardware, devices: int, constants: Constants, tokens: Sequence[int]
) -> float:
    """Seconds of a train step on ``devices`` devices over sequences of these lengths (prompts and actions).

    The efficiency is that of the whole stage, and falls with the number of devices: one batch has less work for each,
    and more to communicate.
    """
    loss: float = (devices / PROFILED_DEVICES) ** constants.train_scaling_loss
    rate = devices * hardware.flops * constants.train_efficiency / loss
    return constants.train_fixed_seconds + train_flops(shape, constants, tokens) / rate
