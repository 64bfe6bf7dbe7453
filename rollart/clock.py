"""The one time seam: every component reads time from the running event loop.

Under a normal loop that is the machine's monotonic clock, under ``rollart.simulation.virtual_loop`` it
is virtual time. Waiting is asyncio's own, so there is no second code path for the simulator.
"""

from __future__ import annotations

import asyncio
from typing import Protocol


class Clock(Protocol):
    """Seconds since an arbitrary origin, never falling."""

    def now(self) -> float: ...


class LoopClock:
    """The running event loop's time."""

    def now(self) -> float:
        return asyncio.get_running_loop().time()
