"""What a run shows and hands over while it goes on: the live display, and sinks that it can do without.

Invariant: no display and no optional sink ends a run. The first error of one detaches it, with one line on
standard error; the event log is not among them. Used by ``rollart train`` and ``rollart eval``.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from rich.console import Console

from rollart.events import Event, EventSink
from rollart.observability.live import LiveProgress

RENDERS_PER_SECOND = 2.0


class OptionalSink:
    """A sink that is detached by its first error.

    Args:
        name: What the message calls it.
        sink: Gets the records until then.
        end: Frees what the sink holds.
    """

    def __init__(self, name: str, sink: EventSink, end: Callable[[], object]) -> None:
        self._name = name
        self._emit = sink.emit
        self._end = end
        self._lock = threading.Lock()
        self._detached = False

    def emit(self, event: Event) -> None:
        self.attempt(partial(self._emit, event))

    def attempt(self, action: Callable[[], object]) -> None:
        """Do something with the sink, unless it is detached; an error detaches it. For any thread."""
        if not self._detached:
            self._guarded(action)

    def close(self) -> None:
        """End the sink, also a detached one."""
        self._guarded(self._end)

    def _guarded(self, action: Callable[[], object]) -> None:
        try:
            action()
        except (Exception, SystemExit) as error:  # noqa: BLE001 - optional: it is made known, and the run goes on
            self._detach(error)

    def _detach(self, error: BaseException) -> None:
        with self._lock:
            known, self._detached = self._detached, True
        if known:
            return
        # The console exits where its pipe has no reader; the broken pipe itself is the context.
        cause = error.__context__ if isinstance(error, SystemExit) and error.__context__ else error
        what = f"{type(cause).__name__}: {cause}"
        with contextlib.suppress(OSError):  # standard error may be the same broken pipe, and there is no third place
            print(f"rollart: {self._name} stopped ({what}): the run goes on without it", file=sys.stderr)


@contextmanager
def live_display(max_train_seconds: float | None = None) -> Iterator[OptionalSink]:
    """The display on standard output, as a sink; redrawn from a thread of its own while the run waits."""
    live = LiveProgress(Console(highlight=False), max_train_seconds)
    display = OptionalSink("the live display", live, partial(live.__exit__, None, None, None))
    display.attempt(live.__enter__)
    stop = threading.Event()

    def draw() -> None:
        while not stop.wait(1 / RENDERS_PER_SECOND):
            display.attempt(live.render)

    drawer = threading.Thread(target=draw, name="live-progress", daemon=True)
    drawer.start()
    try:
        yield display
    finally:
        stop.set()
        drawer.join()
        display.close()
