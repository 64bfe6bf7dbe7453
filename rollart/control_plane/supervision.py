"""Structured supervision: background loops live exactly as long as the work they serve.

The first failure anywhere ends everything and is raised as it is, so that its message stays the first
thing a user sees; no task is orphaned and no error goes unseen.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

T = TypeVar("T")

Loop = tuple[str, Callable[[], Awaitable[Any]]]
"""A background loop: its name and the function that starts it."""


async def supervised(main: Awaitable[T], background: Sequence[Loop]) -> T:
    """Await ``main`` while the background loops run; cancel them when it ends.

    Raises:
        BaseException: what ``main`` raised, or the first background loop that failed.
        RuntimeError: a background loop returned, which none may.
    """
    body = asyncio.ensure_future(main)
    loops = [asyncio.ensure_future(_forever(name, start)) for name, start in background]
    try:
        await asyncio.wait([body, *loops], return_when=asyncio.FIRST_COMPLETED)
        for loop in loops:
            if loop.done():
                loop.result()
        return await body
    finally:
        for task in (body, *loops):
            task.cancel()
        await asyncio.gather(body, *loops, return_exceptions=True)


async def _forever(name: str, start: Callable[[], Awaitable[Any]]) -> None:
    await start()
    raise RuntimeError(f"background loop {name} ended")
