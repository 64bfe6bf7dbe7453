"""What Ctrl-C and SIGTERM do to a run, from the start of the runtime until everything it started has ended.

While workers start, either ends the run at once. Later the first one asks the job to stop; a second one, or a stop
that takes longer than ``STOP_SECONDS``, cancels it. After that, and while workers are being stopped, further ones
change nothing: what is left is clean-up, which has bounds of its own and must not be cut short.

Who calls it: the launch.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
import threading
from collections.abc import Iterator
from typing import Protocol, Self, cast

STOP_SECONDS = 5.0
"""After Ctrl-C the run may take this long to finish a step and write a checkpoint."""

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interruptible(Protocol):
    """A job that can be asked to stop."""

    def interrupt(self) -> None: ...


class Stopping:
    """Handles the signals while it is entered, for the task that enters it."""

    def __init__(self) -> None:
        self._job: Interruptible | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._over = False

    def __enter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._task = cast("asyncio.Task[object]", asyncio.current_task())
        for each in SIGNALS:
            self._loop.add_signal_handler(each, self._signalled)
        return self

    def __exit__(self, *exception: object) -> None:
        self.over()
        for each in SIGNALS:
            self._loop.remove_signal_handler(each)

    def ask(self, job: Interruptible) -> None:
        """From now on the first signal asks this job to stop."""
        self._job = job

    def over(self) -> None:
        """The job has ended: from now on signals change nothing."""
        self._over = True
        if self._deadline is not None:
            self._deadline.cancel()

    def _signalled(self) -> None:
        if self._job is None or self._deadline is not None:
            self._cancel()
        elif not self._over:
            self._deadline = self._loop.call_later(STOP_SECONDS, self._cancel)
            self._job.interrupt()
            with contextlib.suppress(OSError):
                print(
                    f"rollart: stopping: up to {STOP_SECONDS:g} s for the step under way and a checkpoint; "
                    "Ctrl-C again to stop at once",
                    file=sys.stderr,
                    flush=True,
                )

    def _cancel(self) -> None:
        if not self._over:
            self.over()
            self._task.cancel()


@contextlib.contextmanager
def terminable() -> Iterator[None]:
    """Have SIGTERM do what Ctrl-C does, also where no event loop runs."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
