"""Full trajectories kept for ``rollart show``: ``RUN/trajectories/<batch>.msgpack``, one list a batch.

The run writes a bounded sample of every batch, spread evenly over its groups and whole where the bound allows,
and keeps the samples of its newest batches; files appear complete or not at all. Readers find a trajectory by
its id.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from rollart.codec import decode, encode
from rollart.types import TrainBatch, Trajectory, TrajectoryId

FOLDER = "trajectories"


class TrajectoryLog:
    """Writes the sample of each batch.

    Args:
        run_folder: The run's folder.
        limit: Trajectories kept of one batch (``log.trajectories``); 0 keeps none.
        batches: Newest batches whose samples are kept (``log.trajectory_batches``).
    """

    def __init__(self, run_folder: Path, limit: int, batches: int) -> None:
        self._folder = run_folder / FOLDER
        self._limit = limit
        self._batches = batches

    def write(self, batch: TrainBatch) -> None:
        """Keep a sample of ``batch``; a batch that is written again replaces the earlier file.

        Raises:
            OSError: the disk is full or the folder cannot be written.
        """
        chosen = sample(batch, self._limit)
        if not chosen:
            return
        self._folder.mkdir(exist_ok=True)
        target = self._folder / f"{batch.index:06d}.msgpack"
        partial = target.with_suffix(".partial")
        partial.write_bytes(encode(chosen))
        os.replace(partial, target)
        for file in self._folder.glob("*.msgpack"):
            if int(file.stem) <= batch.index - self._batches:
                file.unlink()


def sample(batch: TrainBatch, limit: int) -> list[Trajectory]:
    """At most ``limit`` trajectories: the first member of every group, then the second, ..., in id order."""
    depth = max((len(group.members) for group in batch.groups), default=0)
    rounds = [group.members[m] for m in range(depth) for group in batch.groups if m < len(group.members)]
    return sorted(rounds[:limit], key=lambda trajectory: trajectory.id)


def read_all(run_folder: Path) -> Iterator[tuple[int, Trajectory]]:
    """Every kept trajectory with its batch, in batch order.

    Raises:
        FileNotFoundError: the run kept none.
        msgspec.DecodeError: a file is damaged.
    """
    files = sorted((run_folder / FOLDER).glob("*.msgpack"))
    if not files:
        raise FileNotFoundError(f"{run_folder} keeps no trajectories: set log.trajectories above 0 and train")
    for file in files:
        trajectories: list[Trajectory] = decode(file.read_bytes(), list[Trajectory])
        for trajectory in trajectories:
            yield int(file.stem), trajectory


def find(run_folder: Path, id: TrajectoryId) -> tuple[int, Trajectory]:
    """The newest kept trajectory with this id, and its batch.

    Raises:
        FileNotFoundError: the run kept no trajectories.
        KeyError: none of them has this id.
    """
    found = [(batch, trajectory) for batch, trajectory in read_all(run_folder) if trajectory.id == id]
    if not found:
        raise KeyError(str(id))
    return found[-1]
