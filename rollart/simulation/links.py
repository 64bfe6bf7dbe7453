"""How long weights and KV take to travel. Sizes in bytes, results in seconds.

Two ways for weights. Through the store, as the paper has it: the trainer pushes buckets over the slow link between the
clusters, engines pull them into their hosts' memory, and a swap moves them to the devices; push and pull can overlap
rollout, the swap cannot. By a collective broadcast inside one cluster: straight into the devices, all of it exposed.

The paper's push rate, about 0.47 GiB/s for 8B, is far below the 25 GB/s line of its link and below what its Table 3 has
for TCP; it gives no topology that would explain it. The model takes Table 4's rate as the rate of a whole push
(gathering, staging and sending).
"""

from __future__ import annotations

from rollart.simulation.constants import Constants
from rollart.simulation.shapes import ModelShape


def push_seconds(size: float, constants: Constants) -> float:
    """Trainer to store."""
    return size / constants.push_rate


def pull_seconds(size: float, constants: Constants) -> float:
    """Store to one engine's host, over all buckets."""
    return size / constants.pull_rate


def swap_seconds(size: float, devices: int, constants: Constants) -> float:
    """Host memory to an engine's devices, each of which takes its part."""
    return size / (devices * constants.swap_rate)


def broadcast_seconds(size: float, constants: Constants) -> float:
    """Trainer to all engines of the same cluster."""
    return size / constants.broadcast_rate


def kv_seconds(tokens: int, shape: ModelShape, constants: Constants) -> float:
    """The keys and values of ``tokens`` tokens from one engine to another."""
    return constants.kv_latency + tokens * shape.kv_bytes_per_token / constants.kv_rate
