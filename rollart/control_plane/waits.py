"""Waiting that can be explained: who waits, for what, since when.

Every wait of the control plane for a condition goes through :class:`Signal`, which registers it, and every call
of a worker through :mod:`rollart.control_plane.watched`. The watchdog prints the register when nothing
moves, so a hang always names who waits for whom.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator

import msgspec


class Wait(msgspec.Struct, frozen=True):
    """One wait in progress."""

    who: str
    what: Callable[[], str]
    since: float


class Waits:
    """The register of waits of one process, and its progress counter."""

    def __init__(self) -> None:
        self._waits: dict[int, Wait] = {}
        self._keys = itertools.count()
        self.progress = 0
        """Rises whenever something moved; the watchdog compares it."""

    def moved(self) -> None:
        self.progress += 1

    def begin(self, who: str, what: Callable[[], str]) -> int:
        key = next(self._keys)
        self._waits[key] = Wait(who, what, asyncio.get_running_loop().time())
        return key

    def end(self, key: int) -> None:
        del self._waits[key]

    def lines(self) -> Iterator[str]:
        """One line a wait, oldest first."""
        now = asyncio.get_running_loop().time()
        for wait in sorted(self._waits.values(), key=lambda wait: wait.since):
            yield f"{wait.who} waits {now - wait.since:.1f} s for {wait.what()}"


class Signal:
    """A condition variable for one event loop: waiters re-check their predicate at each ``notify``."""

    def __init__(self, waits: Waits) -> None:
        self._waits = waits
        self._waiters: list[asyncio.Future[None]] = []

    def notify(self) -> None:
        """Wake all waiters; they run at the next turn of the loop."""
        self._waits.moved()
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def wait_for(self, predicate: Callable[[], bool], who: str, what: Callable[[], str]) -> None:
        """Return as soon as ``predicate`` holds; ``what`` describes the wait for the watchdog."""
        if predicate():
            return
        key = self._waits.begin(who, what)
        try:
            while not predicate():
                waiter = asyncio.get_running_loop().create_future()
                self._waiters.append(waiter)
                await waiter
        finally:
            self._waits.end(key)
