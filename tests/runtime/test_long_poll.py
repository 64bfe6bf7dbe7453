"""The waiting side of a long poll, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from rollart.runtime.long_poll import LongPoll
from rollart.simulation import virtual_loop


def run(main: Coroutine[Any, Any, None]) -> None:
    virtual_loop.run(main)


def test_news_that_was_there_before_is_taken_once() -> None:
    async def main() -> None:
        poll = LongPoll()
        poll.set()
        poll.set()
        assert await poll.wait(5.0)
        assert not await poll.wait(0.0)

    run(main())


def test_it_returns_at_the_news_or_after_the_wait() -> None:
    async def main() -> None:
        poll, loop = LongPoll(), asyncio.get_running_loop()
        loop.call_later(2.0, poll.set)
        assert await poll.wait(5.0)
        assert loop.time() == 2.0
        assert not await poll.wait(5.0)
        assert loop.time() == 7.0

    run(main())


def test_a_second_caller_takes_over_and_gets_the_news() -> None:
    async def main() -> None:
        poll = LongPoll()
        first = asyncio.create_task(poll.wait(5.0))
        await asyncio.sleep(0)
        second = asyncio.create_task(poll.wait(5.0))
        await asyncio.sleep(0)
        poll.set()
        assert (await first, await second) == (False, True)

    run(main())


def test_a_cancelled_caller_leaves_the_news_to_the_next() -> None:
    async def main() -> None:
        poll = LongPoll()
        first = asyncio.create_task(poll.wait(5.0))
        await asyncio.sleep(0)
        poll.set()
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        assert await poll.wait(0.0)

    run(main())
