"""The numbers of the performance model: each with its unit, where it comes from, and what it moves.

* ``given``: stated by the paper, or by the documentation of a component that it names;
* ``fitted``: solved for, so that a figure with which the paper describes its workload and hardware comes out; the
  tests of the calibration repeat the comparison;
* ``assumed``: ours, with the range in which we would believe it.

No constant is fitted to the outcome of one of the paper's experiments. Called by every model of the simulator.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Literal, NamedTuple

import msgspec

Basis = Literal["given", "fitted", "assumed"]


BEYOND = 1e4
"""Factor over or under its range at which a value is taken for a slip: runs with it would hardly ever end."""


class Constant(NamedTuple):
    """One number of the model.

    Attributes:
        value, unit: The number.
        basis: How it is known.
        source: Who gives it, the figure that it is fitted to, or why it is assumed.
        low, high: Range in which it may lie.
        moves: What hangs on it.
    """

    value: float
    unit: str
    basis: Basis
    source: str
    low: float
    high: float
    moves: str


CONSTANTS: dict[str, Constant] = {
    "kv_memory_fraction": Constant(
        *(0.9, "share", "given", "vLLM's default share of device memory"),
        *(0.8, 0.95, "KV capacity"),
    ),
    "activation_bytes": Constant(
        *(3e9, "bytes a device", "assumed", "activations, CUDA graphs and communication buffers of an engine"),
        *(1.5e9, 6e9, "KV capacity"),
    ),
    "max_step_tokens": Constant(
        *(8192.0, "tokens", "assumed", "vLLM's default for chunked prefill on large GPUs"),
        *(2048.0, 16384.0, "how long decoding requests wait beside prompts"),
    ),
    "bandwidth_efficiency": Constant(
        *(0.8, "share of peak", "assumed", "what large reads of weights and KV reach"),
        *(0.65, 0.9, "decode speed"),
    ),
    "gemm_efficiency": Constant(
        *(
            0.4,
            "share of peak",
            "fitted",
            "paper, Figure 4: FrozenLake on 2 H800 takes down to 0.53 of 6 H20's time",
        ),
        *(0.3, 0.8, "prefill speed, and decode speed of large batches on H20"),
    ),
    "attention_efficiency": Constant(
        *(0.4, "share of peak", "assumed", "attention kernels reach less than matrix products"),
        *(0.25, 0.65, "prefill speed at long contexts"),
    ),
    "step_seconds": Constant(
        *(0.008, "s a step", "fitted", "paper, Figure 4: GEM-math on 6 H20 takes 0.49 to 0.79 of 2 H800's time"),
        *(0.002, 0.02, "decode speed of small batches"),
    ),
    "row_seconds": Constant(
        *(2e-5, "s a request and step", "assumed", "scheduling, sampling and output of one token"),
        *(0.0, 1e-4, "decode speed of large batches"),
    ),
    "all_reduce_seconds": Constant(
        *(1.5e-5, "s", "assumed", "latency of a small all-reduce in a CUDA graph; two a layer"),
        *(8e-6, 4e-5, "decode speed of engines with several devices"),
    ),
    "all_reduce_efficiency": Constant(
        *(0.375, "share of the link", "assumed", "what a ring reaches of NVLink, whose figure is for both directions"),
        *(0.25, 0.48, "prefill speed of engines with several devices"),
    ),
    "train_efficiency": Constant(
        *(0.1125, "share of peak", "fitted", "paper, section 3: training is 23.1 % of a clean iteration of 365.7 s"),
        *(0.06, 0.45, "training time"),
    ),
    "train_passes": Constant(
        *(4.0, "forward passes", "assumed", "one forward, a backward of two, log-probabilities before"),
        *(3.0, 6.0, "training time, together with train_efficiency; the fit absorbs it"),
    ),
    "train_fixed_seconds": Constant(
        *(10.0, "s", "assumed", "optimizer, packing, dispatch of the batch, synchronisation"),
        *(2.0, 30.0, "training time of small batches"),
    ),
    "train_scaling_loss": Constant(
        *(0.1, "exponent", "assumed", "efficiency falls with (devices / 32) to this power: communication and bubbles"),
        *(0.0, 0.3, "training time at other sizes than the profile's 32 devices"),
    ),
    "bucket_bytes": Constant(
        *(float(2**30), "bytes", "given", "paper, section on weights: buckets of about 1 GB"),
        *(2.0**28, 2.0**31, "number of buckets"),
    ),
    "bucket_seconds": Constant(
        *(0.02, "s a bucket", "assumed", "registration and metadata of one bucket in the store"),
        *(0.0, 0.1, "transfers; the fitted rates absorb it"),
    ),
    "push_rate": Constant(
        *(5.107e8, "bytes/s", "fitted", "paper, Table 4, 8B: push 32.4 s"),
        *(4e8, 2.2e9, "when new weights are there"),
    ),
    "pull_rate": Constant(
        *(2.786e9, "bytes/s", "fitted", "paper, Table 4, 8B: accumulated pull 6.2 s"),
        *(1.5e9, 1.2e10, "when an engine has new weights at hand"),
    ),
    "cluster_link": Constant(
        *(5e10, "bytes/s", "given", "paper: 400 Gbps InfiniBand inside a cluster"),
        *(2.5e10, 4e11, "broadcasts, and pulls of many engines through one link"),
    ),
    "broadcast_efficiency": Constant(
        *(0.4, "share of the link", "assumed", "gathering the trainer's shards and a broadcast, bucket by bucket"),
        *(0.1, 0.85, "weight updates inside one cluster"),
    ),
    "swap_rate": Constant(
        *(2.5e10, "bytes/s a device", "assumed", "host to device over PCIe 5 by pinned memory, of 64 GB/s peak"),
        *(1e10, 5e10, "what of an update stays exposed"),
    ),
    "swap_seconds": Constant(
        *(0.3, "s", "assumed", "pausing the engine, loading and resetting its caches"),
        *(0.05, 2.0, "what of an update stays exposed"),
    ),
    "tcp_rate": Constant(
        *(2.371e9, "bytes/s", "fitted", "paper, Table 3, 8B by TCP: 6.911 s"),
        *(1.5e9, 1e10, "KV transfers over Ethernet"),
    ),
    "rdma_rate": Constant(
        *(1.236e10, "bytes/s", "fitted", "paper, Table 3, 8B and 32B by RDMA: 5.466 and 9.442 s"),
        *(6e9, 4e10, "KV transfers over InfiniBand"),
    ),
    "rdma_fixed_seconds": Constant(
        *(4.141, "s", "fitted", "paper, Table 3, 8B and 32B by RDMA: what does not grow with the size"),
        *(0.0, 5.0, "nothing but Table 3: connections that last do not pay it again"),
    ),
    "kv_transfer_seconds": Constant(
        *(0.005, "s a request", "assumed", "handing over one request between a prefill and a decode engine"),
        *(0.001, 0.05, "prefill and decode on different engines"),
    ),
}


class Constants(msgspec.Struct, frozen=True, kw_only=True):
    """The values of :data:`CONSTANTS`, one field each."""

    kv_memory_fraction: float = CONSTANTS["kv_memory_fraction"].value
    activation_bytes: float = CONSTANTS["activation_bytes"].value
    max_step_tokens: float = CONSTANTS["max_step_tokens"].value
    bandwidth_efficiency: float = CONSTANTS["bandwidth_efficiency"].value
    gemm_efficiency: float = CONSTANTS["gemm_efficiency"].value
    attention_efficiency: float = CONSTANTS["attention_efficiency"].value
    step_seconds: float = CONSTANTS["step_seconds"].value
    row_seconds: float = CONSTANTS["row_seconds"].value
    all_reduce_seconds: float = CONSTANTS["all_reduce_seconds"].value
    all_reduce_efficiency: float = CONSTANTS["all_reduce_efficiency"].value
    train_efficiency: float = CONSTANTS["train_efficiency"].value
    train_passes: float = CONSTANTS["train_passes"].value
    train_fixed_seconds: float = CONSTANTS["train_fixed_seconds"].value
    train_scaling_loss: float = CONSTANTS["train_scaling_loss"].value
    bucket_bytes: float = CONSTANTS["bucket_bytes"].value
    bucket_seconds: float = CONSTANTS["bucket_seconds"].value
    push_rate: float = CONSTANTS["push_rate"].value
    pull_rate: float = CONSTANTS["pull_rate"].value
    cluster_link: float = CONSTANTS["cluster_link"].value
    broadcast_efficiency: float = CONSTANTS["broadcast_efficiency"].value
    swap_rate: float = CONSTANTS["swap_rate"].value
    swap_seconds: float = CONSTANTS["swap_seconds"].value
    tcp_rate: float = CONSTANTS["tcp_rate"].value
    rdma_rate: float = CONSTANTS["rdma_rate"].value
    rdma_fixed_seconds: float = CONSTANTS["rdma_fixed_seconds"].value
    kv_transfer_seconds: float = CONSTANTS["kv_transfer_seconds"].value

    @classmethod
    def with_overrides(cls, overrides: Mapping[str, float]) -> Constants:
        """The constants with some replaced.

        Raises:
            ValueError: there is no constant of a name (the message names the nearest), or a value cannot be meant.
        """
        for name, value in overrides.items():
            if name not in CONSTANTS:
                near = difflib.get_close_matches(name, CONSTANTS, n=1)
                hint = f"did you mean '{near[0]}'?" if near else f"constants: {', '.join(CONSTANTS)}"
                raise ValueError(f"simulation.constants: unknown constant '{name}': {hint}")
            constant = CONSTANTS[name]
            if not constant.low / BEYOND <= value <= constant.high * BEYOND:
                raise ValueError(
                    f"simulation.constants.{name} is {value} {constant.unit}: {constant.low:g} to {constant.high:g} is "
                    f"plausible, and more than {BEYOND:g} times beyond is refused"
                )
        return cls(**overrides)
