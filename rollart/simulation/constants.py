"""Every number of the performance model that is not a device's or a model's own, with where it comes from.

* ``given``: a public default or figure, named;
* ``fitted``: chosen so that the model reproduces the figure named, of the paper's sections 2, 8 and 15 only; a test
  computes it anew;
* ``assumed``: ours, with the range in which it may lie and what it moves, so that a user can vary it.

No constant is fitted to the outcome of one of the paper's experiments. Called by all models of the simulator.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Literal, NamedTuple

import msgspec

GIB = float(2**30)


class Constant(NamedTuple):
    """A number and how it is known.

    Attributes:
        value: As used unless a configuration overrides it (``simulation.constants``).
        unit: Of the value.
        basis: See the module docstring.
        source: Where it stands, to what it is fitted, or why it is assumed.
        low, high: Plausible range.
        moves: What changes with it.
    """

    value: float
    unit: str
    basis: Literal["given", "fitted", "assumed"]
    source: str
    low: float
    high: float
    moves: str


CONSTANTS: dict[str, Constant] = {
    "gemm_share": Constant(
        0.55,
        "of peak FLOPS",
        "assumed",
        "large matrix products of an inference engine in bfloat16",
        0.4,
        0.7,
        "prefill, and decode of large batches",
    ),
    "attention_share": Constant(
        0.35,
        "of peak FLOPS",
        "assumed",
        "attention of prompts over long contexts",
        0.2,
        0.5,
        "prefill of long histories",
    ),
    "bandwidth_share": Constant(
        0.75,
        "of peak bytes/s",
        "assumed",
        "weights and KV read by decode kernels",
        0.6,
        0.85,
        "decode",
    ),
    "step_overhead": Constant(
        0.005,
        "s",
        "assumed",
        "scheduling, sampling and output of a step beside its kernels",
        0.002,
        0.01,
        "decode of small models",
    ),
    "allreduce_latency": Constant(
        15e-6,
        "s",
        "assumed",
        "one all-reduce inside a node",
        5e-6,
        40e-6,
        "decode under tensor parallelism",
    ),
    "link_share": Constant(
        0.6,
        "of NVLink bytes/s",
        "assumed",
        "large all-reduces inside a node",
        0.4,
        0.8,
        "prefill under tensor parallelism",
    ),
    "memory_share": Constant(
        0.9,
        "of device memory",
        "given",
        "vLLM's default gpu_memory_utilization",
        0.8,
        0.95,
        "KV capacity",
    ),
    "workspace_bytes": Constant(
        4e9,
        "bytes a device",
        "assumed",
        "activations, CUDA graphs, communication buffers",
        2e9,
        8e9,
        "KV capacity",
    ),
    "step_tokens": Constant(
        8192,
        "tokens",
        "given",
        "vLLM 0.8's default max_num_batched_tokens of its LLM class",
        2048,
        16384,
        "how prompts share steps with decoding",
    ),
    "train_share": Constant(
        0.0991,
        "of peak FLOPS",
        "fitted",
        "paper, section 3: training is 23.1 % of a clean iteration of 365.7 s (Qwen3-8B, 128 SWE-bench trajectories, "
        "32 H800); covers all that the training stage does, padding and imbalance included",
        0.07,
        0.2,
        "train step",
    ),
    "train_passes": Constant(
        4.0,
        "forward passes",
        "assumed",
        "forward, backward (twice a forward), and log-probabilities computed anew",
        3.0,
        5.0,
        "nothing for dense models of about 8B, to whose step time train_share is fitted",
    ),
    "train_scaling": Constant(
        0.1,
        "exponent",
        "assumed",
        "efficiency falls with devices ** -0.1 from the 32 of the fitted figure",
        0.0,
        0.25,
        "train step on many devices",
    ),
    "push_rate": Constant(
        15.26 / 32.4 * GIB,
        "bytes/s",
        "fitted",
        "paper, Table 4, column 8B: push 32.4 s",
        0.4 * GIB,
        2.2 * GIB,
        "when a new version reaches the engines",
    ),
    "pull_rate": Constant(
        15.26 / 6.2 * GIB,
        "bytes/s",
        "fitted",
        "paper, Table 4, column 8B: accumulated pull 6.2 s",
        1.5 * GIB,
        5.0 * GIB,
        "when a new version reaches the engines; the exposed time if the transfer blocks",
    ),
    "swap_rate": Constant(
        25e9,
        "bytes/s a device",
        "assumed",
        "host to device over PCIe 5, half of its peak",
        12e9,
        50e9,
        "exposed update",
    ),
    "broadcast_rate": Constant(
        8.0 * GIB,
        "bytes/s",
        "given",
        "verl's checkpoint engine README: about 7 s for 30B by NCCL",
        4.0 * GIB,
        20.0 * GIB,
        "exposed update inside one cluster",
    ),
    "kv_rate": Constant(
        11.5 * GIB,
        "bytes/s",
        "fitted",
        "paper, Table 3, RDMA: slope of seconds over size from 8B to 32B",
        5.0 * GIB,
        40.0 * GIB,
        "prefill/decode disaggregation",
    ),
    "kv_latency": Constant(
        0.005,
        "s",
        "assumed",
        "start of a KV transfer",
        0.001,
        0.02,
        "prefill/decode disaggregation",
    ),
}

TRAIN_REFERENCE = 32
"""Devices of the figure that ``train_share`` is fitted to."""


class Constants(msgspec.Struct, frozen=True):
    """The values in use; see :data:`CONSTANTS`."""

    gemm_share: float
    attention_share: float
    bandwidth_share: float
    step_overhead: float
    allreduce_latency: float
    link_share: float
    memory_share: float
    workspace_bytes: float
    step_tokens: float
    train_share: float
    train_passes: float
    train_scaling: float
    push_rate: float
    pull_rate: float
    swap_rate: float
    broadcast_rate: float
    kv_rate: float
    kv_latency: float

    @classmethod
    def with_overrides(cls, overrides: Mapping[str, float]) -> Constants:
        """The table's values, those of ``overrides`` in their place.

        Raises:
            ValueError: there is no constant of that name, or a value is not positive.
        """
        for name, value in overrides.items():
            if name not in CONSTANTS:
                near = difflib.get_close_matches(name, CONSTANTS, n=1)
                hint = f"did you mean '{near[0]}'?" if near else f"there are: {', '.join(CONSTANTS)}"
                raise ValueError(f"simulation.constants: no constant '{name}': {hint}")
            if not 0 < value < float("inf") and name != "train_scaling":
                raise ValueError(f"simulation.constants.{name} is {value}: it must be above 0")
        return cls(**({name: each.value for name, each in CONSTANTS.items()} | dict(overrides)))
