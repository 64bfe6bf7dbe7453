"""How fast one engine is: a roofline of its devices, for the emulated engine core.

A step reads the weights once and, for each request, its keys and values; the matrix products run beside the reading
of the weights, so the longer of the two counts; attention, all-reduces and the host's work come on top. A step that
also computes prompts has their tokens in the same matrix products. The devices of an engine work tensor parallel.

Implements :class:`~rollart.data_plane.generation.emulated_models.SpeedModel`. Called by the simulated generator.
"""

from __future__ import annotations

from rollart.resource_plane.hardware import Hardware
from rollart.simulation.constants import Constants
from rollart.simulation.shapes import BYTES, ModelShape


class EngineModel:
    """An engine of ``devices`` devices that serves one model.

    Args:
        shape: The model.
        hardware: Class of the devices.
        devices: Of one engine.
        constants: Of the performance model.

    Raises:
        ValueError: the weights leave no room for a KV cache.
    """

    def __init__(self, shape: ModelShape, hardware: Hardware, devices: int, constants: Constants) -> None:
        self._shape = shape
        self._constants = constants
        self._devices = devices
        self._compute = hardware.flops * devices * constants.gemm_efficiency
        self._attention = hardware.flops * devices * constants.attention_efficiency
        self._bandwidth = hardware.bandwidth * devices * constants.bandwidth_efficiency
        # heads beyond the KV heads read a copy of them
        copies = max(1.0, devices / shape.kv_heads)
        self._token_seconds = shape.kv_bytes_per_token * copies / self._bandwidth
        reserved = devices * constants.activation_bytes + shape.weight_bytes
        free = devices * hardware.memory * constants.kv_memory_fraction - reserved
        self._kv_tokens = int(free / (shape.kv_bytes_per_token * copies))
        if self._kv_tokens < 1:
            each = hardware.memory * constants.kv_memory_fraction - constants.activation_bytes
            raise ValueError(
                f"{shape.name} has {shape.weight_bytes / 1e9:.0f} GB of weights, and {devices} {hardware.name} have "
                f"{devices * each / 1e9:.0f} GB for weights and KV: an engine needs at least "
                f"{int(shape.weight_bytes / each) + 1} devices (engine.devices)"
            )
        if devices > 1 and not hardware.link:
            raise ValueError(f"{hardware.name} has no link between its devices: engine.devices must be 1")
        self._all_reduce = hardware.link * constants.all_reduce_efficiency
        self._decode: dict[int, tuple[float, float]] = {}

    @property
    def kv_tokens(self) -> int:
        """Tokens whose keys and values the engine holds."""
        return self._kv_tokens

    @property
    def step_tokens(self) -> int:
        """Most tokens of a step."""
        return int(self._constants.max_step_tokens)

    def decode(self, rows: int) -> tuple[float, float]:
        known = self._decode.get(rows)
        if known is None:
            known = self._decode[rows] = (self._seconds(rows, rows, rows), self._token_seconds)
        return known

    def mixed(self, rows: int, chunks: int, context: int, tokens: int, attended: int) -> float:
        base = self._seconds(rows + tokens, rows + chunks, rows + chunks)
        return base + context * self._token_seconds + self._shape.attention_flops(attended) / self._attention

    def _seconds(self, tokens: int, projected: int, requests: int) -> float:
        """A step without attention: all tokens pass the layers, ``projected`` of them the output projection."""
        shape, constants = self._shape, self._constants
        operations = tokens * shape.layer_flops + projected * shape.head_flops
        products = max(shape.bytes_read(tokens) / self._bandwidth, operations / self._compute)
        seconds = products + constants.step_seconds + requests * constants.row_seconds
        if self._devices == 1:
            return seconds
        # a ring moves each element twice, less one device's share; one all-reduce follows attention, one the rest
        moved = 2 * BYTES * tokens * shape.hidden * (self._devices - 1) / self._devices
        return seconds + 2 * shape.layers * (constants.all_reduce_seconds + moved / self._all_reduce)
