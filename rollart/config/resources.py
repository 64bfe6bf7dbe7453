"""Section ``pools``: the hardware, and ``placement``: which role goes where."""

from __future__ import annotations

from pydantic import Field

from rollart.config.base import Section


class PoolConfig(Section):
    """A named set of devices of one hardware class."""

    hardware: str = "CPU"
    """A class of the hardware catalogue: H800, H20, H100, H200, A100, CPU, serverless."""
    devices: int = Field(1, ge=1)
    """How many devices (GPUs, or CPU slots) the pool has."""
    logical: bool = True
    """True: a share of this machine. False: devices of a Ray cluster, its custom resource ``pool:NAME``."""


class PlacementConfig(Section):
    """Section ``placement``: pool by role; ``None`` follows the role's declared affinity."""

    train: str | None = None
    """Pool of the trainer."""
    generate: str | list[str] | dict[str, int] | None = None
    """Pool of the engines; or several pools, which engines fill; or the number of engines in each of several pools."""
    prefill: list[str] = []
    """Pools of ``generate`` whose engines compute prompts only; the others then decode what these have computed."""
    environment: str | None = None
    """Pool of the environment hosts."""
    reward: str | None = None
    """Pool of the rewards. With ``inline://`` they run inside the environment hosts: place these there too."""
    affinity: dict[str, str] = {}
    """Hardware class by domain for generation; ``default`` for the others."""
    deadline: float = Field(120.0, gt=0)
    """Seconds a worker may take to start before the run stops with the reason."""


class RayConfig(Section):
    """Section ``ray``: the cluster that ``run.runtime: ray`` places workers on."""

    address: str | None = None
    """Address of a running cluster (``auto`` finds one on this machine); ``None`` starts a private one here."""
    object_store_bytes: int = Field(128 << 20, ge=80 << 20)
    """Object store of a private cluster."""
    prestart: int = Field(2, ge=0)
    """Worker processes that a private cluster starts ahead of need."""
