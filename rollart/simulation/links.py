"""How long weights and KV travel: pure functions, in seconds.

Across clusters weights go through a store in host memory, bucket by bucket. The paper's Table 4 has both halves: 32.4 s
for the push of 8B's 15.26 GiB, which is 0.5 GB/s, a fiftieth of the 200 Gbps line and a fifth of what its Table 3
measures for the same bytes by TCP. So a push is not the line's time: gathering the shards, conversion, one writer and
the store's own copies are in it. We take it for what it is, one effective rate of the whole path, fitted to the 8B
column, and the pull likewise; the 14B and 32B columns are then predictions. Inside one cluster there is no store:
weights are broadcast over InfiniBand.

Called by the simulated learner and generators.
"""

from __future__ import annotations

import math
from typing import Literal

from rollart.simulation.constants import Constants
from rollart.simulation.shapes import ModelShape


def push_seconds(weight_bytes: float, constants: Constants) -> float:
    """Trainer to store, all buckets; the path is the trainer's, however many engines there are."""
    return weight_bytes / constants.push_rate + _buckets(weight_bytes, constants)


def pull_seconds(weight_bytes: float, constants: Constants, readers: int = 1) -> float:
    """Store to one engine, summed over the buckets, whether or not the engine generates meanwhile.

    Args:
        readers: Engines that pull at the same time through one link; they are slowed once it is full.
    """
    rate = min(constants.pull_rate, constants.cluster_link / readers)
    return weight_bytes / rate + _buckets(weight_bytes, constants)


def broadcast_seconds(weight_bytes: float, constants: Constants) -> float:
    """Trainer to all engines of the same cluster, exposed: engines stand still meanwhile. A ring's time does not grow
    with their number."""
    return weight_bytes / (constants.cluster_link * constants.broadcast_efficiency) + _buckets(weight_bytes, constants)


def swap_seconds(weight_bytes: float, devices: int, constants: Constants) -> float:
    """From an engine's host to its devices, each loading its part: exposed even if the pull was hidden wholly."""
    return constants.swap_seconds + weight_bytes / (devices * constants.swap_rate)


def transfer_seconds(size: float, link: Literal["tcp", "rdma"], constants: Constants) -> float:
    """A plain transfer of weights between clusters, as the paper's Table 3 measures it."""
    if link == "tcp":
        return size / constants.tcp_rate
    return constants.rdma_fixed_seconds + size / constants.rdma_rate


def kv_seconds(tokens: int, shape: ModelShape, constants: Constants, link: Literal["tcp", "rdma"] = "rdma") -> float:
    """Keys and values of a prompt from a prefill engine to a decode engine, over a connection that exists already."""
    rate = constants.tcp_rate if link == "tcp" else constants.rdma_rate
    return constants.kv_transfer_seconds + tokens * shape.kv_bytes_per_token / rate


def _buckets(weight_bytes: float, constants: Constants) -> float:
    return constants.bucket_seconds * math.ceil(weight_bytes / constants.bucket_bytes)
