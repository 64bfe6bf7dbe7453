"""The hardware catalogue: what a hardware class can do, and which one may stand in for which.

Figures are for one device. FLOPS are dense bfloat16 with float32 accumulation at the maker's peak, never
"with sparsity". Sources, by letter in the table:

* P: the RollArt paper's hardware table (H800 and H20; its relative cost follows MegaScale-Infer).
* N: NVIDIA's data sheets, SXM versions: A100 80GB, H100, H200.
* I: Intel Xeon Platinum 8480+, divided by its 56 cores: AMX does 1,024 bfloat16 multiply-adds a cycle and
  core at about 2 GHz; eight channels of DDR5-4800 give 307.2 GB/s; 8 GiB a core is a common server.
* E: our estimate. Cost: H100 is the H800's silicon; A100 and H200 by the usual ratio of cloud prices to the
  H100's; a CPU core and a serverless instance (one virtual CPU, billed by use) by that of virtual CPUs.

Who calls it: the resource manager and routing for compatibility, the planner and the simulator for figures.
"""

from __future__ import annotations

import difflib
from enum import StrEnum

import msgspec


class Kind(StrEnum):
    """What a class is good at, for its price."""

    COMPUTE = "compute-optimised"
    BANDWIDTH = "bandwidth-optimised"
    CPU = "cpu"
    SERVERLESS = "serverless"


class Hardware(msgspec.Struct, frozen=True):
    """One hardware class.

    Attributes:
        name: As in configuration and declarations.
        kind: What it is good at.
        flops: Peak dense bfloat16 operations a second.
        memory: Bytes of device memory (of main memory for CPU classes).
        bandwidth: Peak bytes a second between memory and compute units.
        cost: Price of a device-hour relative to an H20's.
        sources: Where flops, memory, bandwidth and cost come from (module docstring).
        link: Bytes a second to the devices of the same node, 0 without such a link; as P, others as N.
    """

    name: str
    kind: Kind
    flops: float
    memory: int
    bandwidth: float
    cost: float
    sources: str
    link: float = 0.0

    @property
    def is_gpu(self) -> bool:
        return self.kind in (Kind.COMPUTE, Kind.BANDWIDTH)


_GB = 10**9

CATALOGUE: dict[str, Hardware] = {
    hardware.name: hardware
    for hardware in (
        Hardware("H800", Kind.COMPUTE, 989.5e12, 80 * _GB, 3.35e12, 2.85, "P, P, P, P", 400e9),
        Hardware("H20", Kind.BANDWIDTH, 148e12, 96 * _GB, 4.0e12, 1.0, "P, P, P, P", 900e9),
        Hardware("H100", Kind.COMPUTE, 989.4e12, 80 * _GB, 3.35e12, 2.85, "N, N, N, E", 900e9),
        Hardware("H200", Kind.BANDWIDTH, 989.4e12, 141 * _GB, 4.8e12, 3.4, "N, N, N, E", 900e9),
        Hardware("A100", Kind.COMPUTE, 312e12, 80 * _GB, 2.039e12, 1.4, "N, N, N, E", 600e9),
        Hardware("CPU", Kind.CPU, 4.1e12, 8 * 2**30, 5.5e9, 0.03, "I, I, I, E"),
        Hardware("serverless", Kind.SERVERLESS, 2.0e12, 2 * 2**30, 2.7e9, 0.05, "E, E, E, E"),
    )
}

LOCAL = "local"
"""Affinity for "any pool of the cluster itself": everything but serverless."""


def hardware(name: str) -> Hardware:
    """The class of that name.

    Raises:
        ValueError: there is none; the message names the nearest one.
    """
    try:
        return CATALOGUE[name]
    except KeyError:
        raise ValueError(unknown_class(name)) from None


def unknown_class(name: str) -> str:
    """The message for a hardware class that does not exist, naming the nearest one."""
    by_case = {known.lower(): known for known in CATALOGUE}
    near = difflib.get_close_matches(name.lower(), by_case, n=1, cutoff=0.4)
    hint = f"did you mean '{by_case[near[0]]}'?" if near else f"classes: {', '.join(CATALOGUE)}"
    return f"unknown hardware class '{name}': {hint}"


def stand_ins(wanted: str) -> tuple[str, ...]:
    """The classes that can do the work of class ``wanted``, best first, ``wanted`` itself not included.

    A GPU's work goes to GPUs of the same kind first, strongest in what that kind is about, then to the other
    GPUs, then to CPUs. CPU work goes to the hosts of GPUs, cheapest first, and serverless work to CPUs first.
    Nothing stands in by serverless: a function cannot hold a worker.

    Raises:
        ValueError: no such class.
    """
    if wanted == LOCAL:
        return tuple(each.name for each in sorted(CATALOGUE.values(), key=_by_cost) if each.kind is not Kind.SERVERLESS)
    asked = hardware(wanted)
    gpus = [each for each in CATALOGUE.values() if each.is_gpu and each is not asked]
    cpus = [each for each in CATALOGUE.values() if each.kind is Kind.CPU and each is not asked]
    if asked.is_gpu:
        by_strength = _by_flops if asked.kind is Kind.COMPUTE else _by_bandwidth
        order = sorted(gpus, key=lambda each: (each.kind is not asked.kind, by_strength(each))) + cpus
    else:
        order = cpus + sorted(gpus, key=_by_cost)
    return tuple(each.name for each in order)


def _by_flops(each: Hardware) -> float:
    return -each.flops


def _by_bandwidth(each: Hardware) -> float:
    return -each.bandwidth


def _by_cost(each: Hardware) -> float:
    return each.cost
