"""The task queue of each domain: which instance the next group starts from.

Instances are numbered 0, 1, 2, ... for ever; an instance's seed derives from its number. A task whose
group was resolved as stale comes back once, ahead of new ones, so that slow tasks are not starved.
Pure; the cursor is part of a checkpoint.
"""

from __future__ import annotations

from collections import deque

REMEMBERED = 4096
"""Tasks of which it is known that they came back: far more than are ever live. One that was forgotten may come back
once more."""


class TaskQueue:
    """Tasks of one domain.

    Args:
        cursor: First instance that was never given out (a resumed run starts later than 0).
    """

    def __init__(self, cursor: int = 0) -> None:
        self.cursor = cursor
        self._returned: deque[int] = deque()
        self._second_chance: dict[int, None] = {}  # in the order in which they came back

    def take(self) -> int:
        """The next task."""
        if self._returned:
            return self._returned.popleft()
        task = self.cursor
        self.cursor += 1
        return task

    def give_back(self, task: int) -> None:
        """Put a task at the head of the queue, unless it has been there before."""
        if task not in self._second_chance:
            self._second_chance[task] = None
            self._returned.appendleft(task)
            if len(self._second_chance) > REMEMBERED:
                del self._second_chance[next(iter(self._second_chance))]
