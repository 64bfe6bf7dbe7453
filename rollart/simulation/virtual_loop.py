"""An asyncio event loop that runs in virtual time.

``loop.time()`` is virtual; instead of waiting for the next timer, the loop moves its time to it. All
control-plane code reads time from the loop and waits with asyncio, so it runs here unmodified. The same
program gives the same interleaving every time: what is ready runs first in, first out, and timers
of equal time run in the order they were set.

When nothing is scheduled and nothing is ready, no event can ever happen again: the loop raises
:class:`Deadlock` out of ``run``, with the tasks that wait, instead of hanging.

The loop has no selector, no sockets and no threads, and its handles do as little as asyncio's contract allows,
because a simulated turn is some tens of callbacks and nothing else.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

PRUNE_ABOVE = 1024
"""Cancelled timers are dropped from the heap once there are this many and they are the larger half of it."""


class Deadlock(RuntimeError):
    """No task can run and no timer is set; the message lists what every task awaits."""


class _Handle:
    """A callback to run: what ``call_soon`` and ``call_at`` return, as far as asyncio uses it."""

    __slots__ = ("_args", "_callback", "_context", "_loop")

    def __init__(
        self,
        loop: VirtualTimeLoop,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        context: contextvars.Context | None,
    ) -> None:
        self._loop = loop
        self._callback: Callable[..., object] | None = callback
        self._args = args
        self._context = contextvars.copy_context() if context is None else context

    def cancel(self) -> None:
        self._callback = None

    def cancelled(self) -> bool:
        return self._callback is None

    def run(self) -> None:
        """Call it, unless it was cancelled; an error goes to the loop's exception handler, as asyncio has it."""
        callback = self._callback
        if callback is None:
            return
        try:
            self._context.run(callback, *self._args)
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:  # noqa: BLE001 - as asyncio's own handles do
            self._loop.call_exception_handler({"message": f"Exception in callback {callback!r}", "exception": error})


class _Timer(_Handle):
    """A handle with a time, which knows that the heap still holds it."""

    __slots__ = ("_when", "scheduled")

    def __init__(
        self,
        loop: VirtualTimeLoop,
        when: float,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        context: contextvars.Context | None,
    ) -> None:
        super().__init__(loop, callback, args, context)
        self._when = when
        self.scheduled = True

    def when(self) -> float:
        return self._when

    def cancel(self) -> None:
        if self._callback is not None and self.scheduled:
            self._loop.timer_cancelled()
        self._callback = None


class VirtualTimeLoop(asyncio.BaseEventLoop):
    """See the module docstring. Offloaded work runs inline (``offload_inline``): there are no threads."""

    offload_inline = True

    def __init__(self, start: float = 0.0) -> None:
        super().__init__()
        self._virtual = start
        self._soon: deque[_Handle] = deque()
        self._timers: list[tuple[float, int, _Timer]] = []
        self._timers_set = 0
        self._timers_cancelled = 0
        self._explain: Callable[[], str] | None = None

    def time(self) -> float:
        return self._virtual

    def explain_with(self, explain: Callable[[], str]) -> None:
        """Let the owner of the program add its wait-for graph to a deadlock's message."""
        self._explain = explain

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> _Handle:
        handle = _Handle(self, callback, args, context)
        self._soon.append(handle)
        return handle

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> _Timer:
        timer = _Timer(self, when, callback, args, context)
        self._timers_set += 1
        heapq.heappush(self._timers, (when, self._timers_set, timer))
        return timer

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> _Timer:
        return self.call_at(self._virtual + delay, callback, *args, context=context)

    def timer_cancelled(self) -> None:
        """A timer that the heap holds was cancelled."""
        self._timers_cancelled += 1
        if self._timers_cancelled > PRUNE_ABOVE and 2 * self._timers_cancelled > len(self._timers):
            self._timers = [entry for entry in self._timers if not entry[2].cancelled()]
            heapq.heapify(self._timers)
            self._timers_cancelled = 0

    def _run_once(self) -> None:
        """asyncio's hook for one turn of the loop: run what is ready, or move time to the next timer."""
        soon, timers = self._soon, self._timers
        if not soon or (timers and timers[0][0] <= self._virtual):
            self._due()
        for _ in range(len(soon)):
            soon.popleft().run()

    def _due(self) -> None:
        """Make the timers ready that are due; move time to the first of them if nothing else is ready."""
        timers, soon = self._timers, self._soon
        while timers and timers[0][2].cancelled():
            heapq.heappop(timers)
            self._timers_cancelled -= 1
        if not soon:
            if not timers:
                self._deadlocked()
            self._virtual = max(self._virtual, timers[0][0])
        while timers and timers[0][0] <= self._virtual:
            timer = heapq.heappop(timers)[2]
            timer.scheduled = False
            if timer.cancelled():
                self._timers_cancelled -= 1
            else:
                soon.append(timer)

    def _deadlocked(self) -> None:
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
