"""The synchronous heart of an engine: everything but waiting.

A core holds sessions and requests and advances them step by step. It has no tasks, no event loop and no
clock: :class:`~rollart.data_plane.generation.shell.EngineShell` gives it those, and a plain synchronous
loop can drive it directly::

    core.add(request)
    while core.has_work:
        core.step()
        answers += core.settle(0.0)

Invariants every core keeps, beyond the contract in :mod:`rollart.data_plane.generation.engine`:

* ``add``, ``abort`` and ``release`` are only called between ``settle`` and the next ``step``;
* an answer leaves the core exactly once, by ``settle``;
* the version changes in ``update`` and nowhere else.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from rollart.data_plane.generation.engine import EngineInfo, EngineStats
from rollart.data_plane.weights.store import Manifest
from rollart.types import GenerationRequest, GenerationResult, TrajectoryId


class EngineCore(Protocol):
    """What the shell needs of an engine."""

    @property
    def has_work(self) -> bool:
        """Whether ``step`` would advance a request."""

    def info(self) -> EngineInfo: ...

    def stats(self) -> EngineStats: ...

    def add(self, request: GenerationRequest) -> None:
        """Take a request; idempotent by (trajectory, turn, attempt). Never raises for a bad one: it is answered."""

    def abort(self, trajectory: TrajectoryId) -> None:
        """Answer the trajectory's request in flight with the tokens so far, and drop its session."""

    def release(self, trajectory: TrajectoryId) -> None:
        """Drop a session; a request that is still in flight is answered as by ``abort``."""

    def step(self) -> float:
        """Advance. Returns the seconds that the work takes beyond this call: 0 if it has been done in it."""

    def settle(self, elapsed: float) -> list[GenerationResult]:
        """Account for ``elapsed`` seconds since ``step`` and return the answers that are due.

        ``elapsed`` may be less than ``step`` asked for when a command cut the wait short.
        """

    def check(self, manifest: Manifest) -> None:
        """Refuse a manifest that ``update`` could not load.

        Raises:
            ValueError: the tensors do not fit; the message names the first that does not.
        """

    def update(self, manifest: Manifest, flat: np.ndarray | None) -> None:
        """Take the weights of a checked manifest; the KV of all sessions becomes invalid.

        Args:
            manifest: Layout, version and checksum.
            flat: The flattened weights, ``uint8[manifest.size]``; ``None`` only for cores without weights.
        """

    def in_flight(self) -> int:
        """Requests that are waiting or running."""

    def started(self) -> tuple[tuple[TrajectoryId, int], ...]:
        """Version of the first token of each request in flight for a turn 0 that has one."""
