"""Processes by id, without trusting an id that was given to another process meanwhile (Linux ``/proc``).

Who calls it: the Ray runtime, to end by id exactly what it started.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import time
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

_POLL = 0.02
_PR_SET_PDEATHSIG = 1


class Process(NamedTuple):
    """A process; ``started`` (clock ticks since boot) tells it from a later one with the same id."""

    pid: int
    started: int


def _read(pid: int) -> tuple[int, Process] | None:
    """The parent's id and the process, or None if it is gone or a zombie."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    # Fields after the name, which stands in parentheses and may hold anything: state, parent, ..., start time.
    fields = text.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else (int(fields[1]), Process(pid, int(fields[19])))


def process(pid: int) -> Process | None:
    """The process with this id, or None."""
    found = _read(pid)
    return None if found is None else found[1]


def alive(processes: Collection[Process]) -> set[Process]:
    """Those that still run."""
    return {each for each in processes if process(each.pid) == each}


def descendants(pid: int) -> set[Process]:
    """All processes below ``pid``."""
    below: dict[int, list[Process]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit() and (found := _read(int(entry))) is not None:
            below.setdefault(found[0], []).append(found[1])
    result: set[Process] = set()
    todo = [pid]
    while todo:
        children = below.get(todo.pop(), [])
        result.update(children)
        todo.extend(child.pid for child in children)
    return result


def children(pid: int) -> set[Process]:
    """The processes directly below ``pid``."""
    found = (_read(int(entry)) for entry in os.listdir("/proc") if entry.isdigit())
    return {each[1] for each in found if each is not None and each[0] == pid}


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent dies (Linux; elsewhere nothing happens)."""
    if not sys.platform.startswith("linux"):
        return
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def end(processes: Collection[Process], grace: float) -> set[Process]:
    """Wait ``grace`` seconds for processes to end by themselves, then kill them. Blocking.

    Returns:
        Those that had to be killed.
    """
    remaining = _wait(processes, grace)
    for each in remaining:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(each.pid, signal.SIGKILL)
    _wait(remaining, grace)
    return remaining


def _wait(processes: Collection[Process], seconds: float) -> set[Process]:
    deadline = time.monotonic() + seconds
    while (remaining := alive(processes)) and time.monotonic() < deadline:
        time.sleep(_POLL)
    return remaining
