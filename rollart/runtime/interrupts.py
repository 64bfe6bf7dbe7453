"""Ctrl-C around blocking calls: felt at once where waiting is pointless, held back where work must finish.

Who calls it: the Ray cluster, whose start blocks in C++ code for up to tens of seconds.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType


class ParkedThread:
    """Runs a blocking call in a daemon thread that stays alive until :meth:`release`.

    It stays because the kernel kills child processes that asked for it when the *thread* that started them
    ends. The caller's thread waits in a way that Ctrl-C interrupts, which no blocking C++ call is.
    """

    def __init__(self, call: Callable[[], object], name: str) -> None:
        self._call = call
        self._error: BaseException | None = None
        self._done = threading.Event()
        self._released = threading.Event()
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def _run(self) -> None:
        try:
            self._call()
        except BaseException as error:  # noqa: BLE001 - raised in the thread that waits
            self._error = error
        self._done.set()
        self._released.wait()

    def wait(self, seconds: float) -> None:
        """Wait for the call, and raise what it raised.

        Raises:
            TimeoutError: it took longer; it goes on.
            KeyboardInterrupt: Ctrl-C was pressed; the call goes on.
        """
        with _raising_interrupts():
            if not self._done.wait(seconds):
                raise TimeoutError(f"no answer in {seconds:g} s")
        if self._error is not None:
            raise self._error

    def finished(self, seconds: float) -> bool:
        """Whether the call has ended, after at most so many seconds."""
        return self._done.wait(seconds)

    def release(self) -> None:
        """Let the thread end."""
        self._released.set()


@contextlib.contextmanager
def _raising_interrupts() -> Iterator[None]:
    """Have Ctrl-C raise at once in the main thread; ``asyncio.run`` would first wait for its loop to turn."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextlib.contextmanager
def held_back() -> Iterator[None]:
    """Hold back Ctrl-C and SIGTERM in this thread; they are delivered at the end."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
