"""How Workers are placed and called: the only view of processes that the control plane has.

Two implementations, in-process and Ray, pass one contract suite. Arguments and results cross by
:mod:`rollart.codec` in both, so nothing is shared by reference and what works in one works in the
other. Every call has a deadline; a worker's error arrives as :class:`WorkerError` with its first cause.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import msgspec

GPU = "GPU"
"""Besides pools, the one resource that Ray counts itself: it shows a worker exactly the GPUs it was given."""


class Placement(msgspec.Struct, frozen=True):
    """Where a worker shall live, as the resource manager bound it."""

    worker: str
    """Unique name, e.g. ``generate-0``."""
    role: str
    pool: str
    hardware_class: str
    resources: dict[str, float] = {}
    """Runtime resources that the pool stands for."""
    environment: dict[str, str] = {}
    """Environment variables of the worker's process."""


def pool_resource(pool: str) -> str:
    """The runtime resource that stands for a pool's devices, e.g. to start a Ray node with."""
    return f"pool:{pool}"


class WorkerInfo(msgspec.Struct, frozen=True):
    """A placed worker."""

    worker: str
    role: str
    pool: str
    hardware_class: str
    host: str
    pid: int


class WorkerError(RuntimeError):
    """A method of a worker raised.

    Attributes:
        info: Which worker.
        method: Which method.
        cause_type: Class name of the first cause.
        cause: Its message.
        remote_traceback: Where it happened, for the log.
    """

    def __init__(self, info: WorkerInfo, method: str, cause_type: str, cause: str, remote_traceback: str = "") -> None:
        super().__init__(
            f"{cause_type}: {cause} (in {info.worker}.{method}, role {info.role}, pool {info.pool}, host {info.host})"
        )
        self.info = info
        self.method = method
        self.cause_type = cause_type
        self.cause = cause
        self.remote_traceback = remote_traceback


class WorkerLost(RuntimeError):
    """The worker's process is gone; the message names it, its role, pool and host."""


class CallTimeout(TimeoutError):
    """A call passed its deadline; the message names the worker, the method and the seconds."""


class PlacementError(RuntimeError):
    """A worker could not be placed in time; the message names the pool and the remedy."""


class WorkerHandle(ABC):
    """The caller's end of one worker."""

    info: WorkerInfo

    @abstractmethod
    async def call(self, method: str, *args: Any, timeout: float) -> Any:
        """Await ``worker.method(*args)``, arguments in the order of the signature (keyword-only ones last).

        A caller that is cancelled or passes its deadline cancels the method, never the worker. Calls that
        run at the same time begin in no promised order.

        Raises:
            AttributeError: the worker has no such public method.
            TypeError: an argument does not fit the method, or a value cannot cross a process border.
            WorkerError: the method raised.
            WorkerLost: the process is gone.
            CallTimeout: no answer within ``timeout`` seconds.
        """

    @abstractmethod
    async def stop(self, grace: float) -> None:
        """Call the worker's ``stop`` method, then end its process after at most ``grace`` seconds. Idempotent."""

    @abstractmethod
    async def kill(self) -> None:
        """End the worker at once, without its ``stop``; calls in flight raise WorkerLost. Idempotent."""


class Runtime(ABC):
    """Places workers; ends every process it started."""

    @abstractmethod
    async def spawn(
        self, worker_class: type, placement: Placement, args: tuple[Any, ...], deadline: float
    ) -> WorkerHandle:
        """Create ``worker_class(*args)`` where ``placement`` says. ``args`` cross by the codec.

        Raises:
            TypeError: the class cannot be called across a process border: its constructor or a public method
                lacks type annotations, or no other process can import it.
            PlacementError: not placed within ``deadline`` seconds.
            WorkerError: the constructor raised.
        """

    @abstractmethod
    async def stop(self) -> None:
        """End all workers and whatever else was started. Idempotent."""
