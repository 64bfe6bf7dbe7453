"""Batched, ordered messages to one worker.

Everything put during a call in flight goes out with the next call, so the batch size adapts to the
load and a turn never costs a remote call of its own. Bounded by construction: a trajectory has at most
one message of each kind on its way.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from rollart.runtime.long_poll import LongPoll

FULL = 64
"""Messages of one kind that are sent without waiting for an urgent one."""


class Outbox:
    """Collects messages of ``kinds`` kinds and sends them as one call with a list for each kind.

    Args:
        kinds: Number of message kinds.
        send: ``await send(list_of_kind_0, list_of_kind_1, ...)``.
    """

    def __init__(self, kinds: int, send: Callable[..., Awaitable[Any]]) -> None:
        self._kinds = kinds
        self._send = send
        self._lists: list[list[Any]] = [[] for _ in range(kinds)]
        self._filled = LongPoll()

    def put(self, kind: int, message: Any, *, urgent: bool = True) -> None:
        """Queue a message; one that is not urgent goes out with the next one that is, or with a full queue."""
        self._lists[kind].append(message)
        if urgent or len(self._lists[kind]) >= FULL:
            self._filled.set()

    def __len__(self) -> int:
        return sum(map(len, self._lists))

    async def run(self) -> None:
        """Send until cancelled. A failed call ends it with the call's error."""
        while True:
            await self._filled.wait()
            lists, self._lists = self._lists, [[] for _ in range(self._kinds)]
            await self._send(*lists)
