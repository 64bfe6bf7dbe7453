"""The watchdog: when nothing has moved for a while, it says who waits for whom.

It never ends a run: a slow environment may be legitimate. It reports once per stall, to the event log
(``Alarm``) and through the callback that prints it, and again when the run moves on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from rollart.control_plane.waits import Waits
from rollart.events import Alarm, EventSink


def wait_graph(waits: Waits, describe: Iterable[Callable[[], str]]) -> str:
    """Every wait in progress and the state of every component, one line each."""
    lines = [*waits.lines(), *(component() for component in describe)]
    return "\n".join(f"  {line}" for line in lines)


async def watch(waits: Waits, graph: Callable[[], str], stall_seconds: float, sink: EventSink) -> None:
    """Report stalls until cancelled, each with what ``graph`` says then."""
    seen, since, reported = waits.progress, _now(), False
    while True:
        await asyncio.sleep(stall_seconds / 4)
        if waits.progress != seen:
            if reported:
                sink.emit(Alarm("watchdog", f"moving again after {_now() - since:.0f} s"))
            seen, since, reported = waits.progress, _now(), False
        elif not reported and _now() - since >= stall_seconds:
            reported = True
            sink.emit(Alarm("watchdog", f"nothing has moved for {_now() - since:.0f} s:\n{graph()}"))


def _now() -> float:
    return asyncio.get_running_loop().time()
