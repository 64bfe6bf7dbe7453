"""How often a lost worker is started again before the run ends.

Pure: it counts losses and decides. Called by the HostSupervisor.
"""

from __future__ import annotations

from rollart.runtime.runtime import WorkerLost


class RestartBudget:
    """The restarts of one worker over a run.

    Args:
        worker: Its name.
        limit: Restarts that it may take.
        key: The configuration key of the limit, for the message.
    """

    def __init__(self, worker: str, limit: int, key: str) -> None:
        self._worker = worker
        self._limit = limit
        self._key = key
        self._first = ""
        self._losses = 0

    def lost(self, cause: str) -> int:
        """Count a loss, or a restart that failed; returns the number of the restart that is due, from 1.

        Raises:
            WorkerLost: no restart is left; the message names the first cause.
        """
        self._first = self._first or cause
        self._losses += 1
        if self._losses > self._limit:
            times = "once" if self._losses == 1 else f"{self._losses} times"
            raise WorkerLost(
                f"{self._worker} was lost {times} and {self._key} is {self._limit}; the first cause: {self._first}"
            )
        return self._losses
