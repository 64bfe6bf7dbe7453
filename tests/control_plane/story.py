"""What happened in a virtual job: its events with their times, and the batches that it trained."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
from scenarios import Scenario

from rollart.events import Event
from rollart.types import Group, TrainBatch, Trajectory


class Story(msgspec.Struct):
    """What happened."""

    scenario: Scenario
    events: list[Event]
    times: list[float]
    """Of the events, in virtual seconds."""
    batches: list[TrainBatch]
    error: BaseException | None
    breaches: list[str]
    """Bounds that were exceeded at some moment."""
    starts: int = 1
    """Once, and once more for each time that it was resumed."""
    stops: int = 0
    """How often the user stopped it."""

    @property
    def stopped(self) -> bool:
        """Whether the user stopped its last start."""
        return self.stops == self.starts

    def timed(self) -> Iterator[tuple[float, Event]]:
        return zip(self.times, self.events, strict=True)

    def members(self) -> Iterator[tuple[TrainBatch, Group, int, Trajectory]]:
        """Every member of every batch with its position in its group."""
        for batch in self.batches:
            for group in batch.groups:
                for position, member in enumerate(group.members):
                    yield batch, group, position, member
