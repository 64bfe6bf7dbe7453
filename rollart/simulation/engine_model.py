"""How long one engine's steps take on modelled hardware, and how much KV it holds.

A roofline: a step's matrix products take the longer of reading the weights and of computing; reading keys and values,
attention of prompts, all-reduces of tensor parallelism and a constant overhead come on top. Implements the
:class:`~rollart.data_plane.generation.emulated_models.SpeedModel` of the emulated engine.
"""

from __future__ import annotations

from rollart.resource_plane.hardware import Hardware
from rollart.simulation.constants import Constants
from rollart.simulation.shapes import BYTES, ModelShape


class EngineModel:
    """See the module docstring.

    Args:
        shape: The model.
        hardware: Of each device.
        devices: Of the engine, all tensor parallel.
        constants: Of the performance model.

    Raises:
        ValueError: the weights do not fit the devices.
    """

    def __init__(self, shape: ModelShape, hardware: Hardware, devices: int, constants: Constants) -> None:
        self._shape = shape
        self._devices = devices
        self._bytes = hardware.bandwidth * devices * constants.bandwidth_share
        self._gemm = hardware.flops * devices * constants.gemm_share
        self._attention = hardware.flops * devices * constants.attention_share
        self._overhead = constants.step_overhead
        self._kv_token = shape.kv_bytes_per_token / self._bytes
        self._reductions = 2 * shape.layers if devices > 1 else 0
        self._latency = constants.allreduce_latency
        moved = 2 * (devices - 1) / devices * BYTES * shape.hidden
        self._reduce_token = moved / (hardware.link * constants.link_share) if devices > 1 else 0.0
        room = devices * (constants.memory_share * hardware.memory - constants.workspace_bytes) - shape.weight_bytes
        if room <= 0:
            raise ValueError(
                f"{shape.name} needs {shape.weight_bytes / 1e9:.0f} GB for its weights, more than {devices} "
                f"{hardware.name} have: raise engine.devices"
            )
        self._kv_tokens = int(room / shape.kv_bytes_per_token)
        self._step_tokens = int(constants.step_tokens)
        self._decode: dict[int, tuple[float, float]] = {}

    @property
    def kv_tokens(self) -> int | None:
        return self._kv_tokens

    @property
    def step_tokens(self) -> int | None:
        return self._step_tokens

    def decode(self, rows: int) -> tuple[float, float]:
        known = self._decode.get(rows)
        if known is None:
            known = self._decode[rows] = self._products(rows, rows), self._kv_token
        return known

    def mixed(self, rows: int, chunks: int, context: int, tokens: int, attended: int) -> float:
        attention = self._shape.attention_flops(attended) / self._attention
        return self._products(rows + tokens, rows + chunks) + self._kv_token * context + attention

    def _products(self, tokens: int, projected: int) -> float:
        """Seconds of a step's matrix products over ``tokens`` tokens, ``projected`` of which get logits."""
        shape = self._shape
        reading = shape.bytes_read(tokens) / self._bytes
        computing = (tokens * shape.layer_flops + projected * shape.head_flops) / self._gemm
        reducing = self._reductions * (self._latency + tokens * self._reduce_token)
        return max(reading, computing) + reducing + self._overhead
