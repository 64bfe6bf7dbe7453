"""News that one task waits for: for ever, or as the waiting side of a long poll, for a while.

A long poll has one caller. A second one takes over from the first, whose caller has given up: the first returns
without news.
"""

from __future__ import annotations

import asyncio


class LongPoll:
    """News that one method waits for.

    It is cheaper than an ``asyncio.Event`` under ``asyncio.timeout``, and every turn of every trajectory passes
    through two of them.
    """

    def __init__(self) -> None:
        self._news = False
        self._waiter: asyncio.Future[None] | None = None

    def set(self) -> None:
        """There is news."""
        self._news = True
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    async def wait(self, max_wait: float | None = None) -> bool:
        """Return True once there is news, which is thereby taken, or False after ``max_wait`` seconds."""
        if self._waiter is not None:
            _give_up(self._waiter)
            self._waiter = None
        if not self._news and (max_wait is None or max_wait > 0):
            loop = asyncio.get_running_loop()
            self._waiter = waiter = loop.create_future()
            timer = None if max_wait is None else loop.call_later(max_wait, _give_up, waiter)
            try:
                await waiter
            finally:
                if timer is not None:
                    timer.cancel()
                if self._waiter is waiter:
                    self._waiter = None
            if self._waiter is not None:
                return False
        news, self._news = self._news, False
        return news


def _give_up(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
