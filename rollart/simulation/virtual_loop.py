"""An asyncio event loop that runs in virtual time.

``loop.time()`` is virtual; instead of waiting for the next timer, the loop moves its time to it. All
control-plane code reads time from the loop and waits with asyncio, so it runs here unmodified. The same
program gives the same interleaving every time: asyncio's ready queue is first in, first out, and timers
of equal time run in the order they were set.

When nothing is scheduled and nothing is ready, no event can ever happen again: the loop raises
:class:`Deadlock` out of ``run``, with the tasks that wait, instead of hanging.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class Deadlock(RuntimeError):
    """No task can run and no timer is set; the message lists what every task awaits."""


class _VirtualSelector(selectors.BaseSelector):
    """Selects nothing; moves virtual time instead of waiting."""

    def __init__(self) -> None:
        self.loop: VirtualTimeLoop | None = None
        self._keys: dict[Any, selectors.SelectorKey] = {}

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        key = selectors.SelectorKey(fileobj, fileobj if isinstance(fileobj, int) else fileobj.fileno(), events, data)
        self._keys[fileobj] = key
        return key

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._keys.pop(fileobj)

    def get_map(self) -> dict[Any, selectors.SelectorKey]:
        return self._keys

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if self.loop is None:
            return []
        if timeout is None:
            self.loop.deadlocked()
        elif timeout > 0:
            self.loop.advance()
        return []


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """See the module docstring. Offloaded work runs inline (``offload_inline``): there are no threads."""

    offload_inline = True

    def __init__(self, start: float = 0.0) -> None:
        self._virtual = start
        selector = _VirtualSelector()
        super().__init__(selector)
        selector.loop = self
        self._explain: Callable[[], str] | None = None

    def time(self) -> float:
        return self._virtual

    def explain_with(self, explain: Callable[[], str]) -> None:
        """Let the owner of the program add its wait-for graph to a deadlock's message."""
        self._explain = explain

    def advance(self) -> None:
        """Move to the earliest timer. asyncio keeps its timers in a heap."""
        scheduled: list[asyncio.TimerHandle] = self._scheduled  # type: ignore[attr-defined]
        self._virtual = max(self._virtual, scheduled[0].when())

    def deadlocked(self) -> None:
        waiting = [f"  {task.get_name()}: {task.get_coro()}" for task in asyncio.all_tasks(self) if not task.done()]
        lines = ["nothing can happen any more at virtual time " + f"{self._virtual:.3f}; tasks that wait:", *waiting]
        if self._explain is not None:
            lines.append(self._explain())
        raise Deadlock("\n".join(lines))


def run(main: Coroutine[Any, Any, T], explain: Callable[[], str] | None = None) -> T:
    """Run a coroutine to its end in virtual time.

    Raises:
        Deadlock: it can never end; the message carries ``explain()``.
    """
    loop = VirtualTimeLoop()
    if explain is not None:
        loop.explain_with(explain)
    try:
        asyncio.set_event_loop(loop)
        return loop.run_until_complete(main)
    finally:
        _cancel_all(loop)
        asyncio.set_event_loop(None)
        loop.close()


def _cancel_all(loop: VirtualTimeLoop) -> None:
    tasks = [task for task in asyncio.all_tasks(loop) if not task.done()]
    for task in tasks:
        task.cancel()
    if tasks:
        loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
