"""Section ``engine``: how actions are generated."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rollart.config.base import Section


class EngineConfig(Section):
    """The generation engines."""

    kind: str = Field("torch", min_length=1)
    """``torch``, or ``module:Class`` of your own: called with this section and an ``EngineSetup``, it is the core."""
    count: int = Field(1, ge=1)
    """Engines (replicas); with ``placement.generate`` by pool, their number is the sum there."""
    devices: int = Field(1, ge=1)
    """Devices of one engine (tensor parallelism). The torch engine runs on one; modelled ones on any number."""
    max_rows: int = Field(64, ge=1)
    """Requests that decode together in one step."""
    max_sessions: int = Field(512, ge=1)
    """Trajectories whose KV cache is kept between turns; the least recently used are dropped."""
    max_context: int | None = Field(None, ge=16)
    """Longest token history of a trajectory; ``None`` takes the domains' longest ``max_context``."""
    prefill_chunk: int = Field(1024, ge=1)
    """Prompt tokens computed in one step, over all requests."""
    deterministic: bool = False
    """Fixed batch rows and KV width, fixed prefill chunks: results do not depend on what else runs."""
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    """Type of weights and KV cache."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where it runs."""
    answer_timeout: float = Field(1800.0, ge=0.1)
    """Seconds in which an engine answers a request, updates included; past it the attempt fails and is retried."""
    threads: int = Field(1, ge=1)
    """Torch threads of the engine process."""
