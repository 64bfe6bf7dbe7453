"""Keeps the live display moving while a command waits for a run."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from rollart.observability.live import LiveProgress

RENDERS_PER_SECOND = 2.0


@contextmanager
def rendered(live: LiveProgress) -> Iterator[None]:
    """Redraw from a thread of its own, so that the display moves while the run waits."""
    stop = threading.Event()

    def draw() -> None:
        while not stop.wait(1 / RENDERS_PER_SECOND):
            live.render()

    drawer = threading.Thread(target=draw, name="live-progress", daemon=True)
    drawer.start()
    try:
        yield
    finally:
        stop.set()
        drawer.join()
