"""The task queue of each domain: which instance the next group starts from.

Instances are numbered 0, 1, 2, ... for ever; an instance's seed derives from its number. A task whose
group was resolved as stale comes back once, ahead of new ones, so that slow tasks are not starved.
Pure; the cursor is part of a checkpoint.
"""

from __future__ import annotations

from collections import deque


class TaskQueue:
    """Tasks of one domain.

    Args:
        cursor: First instance that was never given out (a resumed run starts later than 0).
    """

    def __init__(self, cursor: int = 0) -> None:
        self.cursor = cursor
        self._returned: deque[int] = deque()
        self._second_chance: set[int] = set()

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
            self._second_chance.add(task)
            self._returned.appendleft(task)
