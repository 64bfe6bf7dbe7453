"""The task queue of each domain: which instance the next group starts from.

Instances are numbered 0, 1, 2, ... for ever; an instance's seed derives from its number. A task whose
group was resolved as stale comes back once, ahead of new ones, so that slow tasks are not starved.
Pure; its state is part of a checkpoint.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import msgspec

REMEMBERED = 4096
"""Tasks of which it is known that they came back: far more than are ever live. One that was forgotten may come back
once more."""


class TaskState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A queue as a checkpoint has it.

    Attributes:
        cursor: First instance that was never given out.
        returned: Tasks that come before it, in order.
        second_chance: Tasks that have come back once, oldest first.
    """

    cursor: int = 0
    returned: tuple[int, ...] = ()
    second_chance: tuple[int, ...] = ()


class TaskQueue:
    """Tasks of one domain.

    Args:
        state: Where a resumed run goes on.
    """

    def __init__(self, state: TaskState | None = None) -> None:
        state = state or TaskState()
        self.cursor = state.cursor
        self._returned = deque(state.returned)
        self._second_chance = dict.fromkeys(state.second_chance)  # in the order in which they came back

    def state(self, unfinished: Sequence[int] = ()) -> TaskState:
        """The queue's state; tasks that were given out and not finished come first, in this order."""
        return TaskState(self.cursor, (*unfinished, *self._returned), tuple(self._second_chance))

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
