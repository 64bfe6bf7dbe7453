"""Checkpoints of a run: the trainer's folder plus the job's own state.

``checkpoints/step_000120/`` is a Hugging Face model folder with the optimizer's state, written by the
trainer atomically. ``checkpoints/step_000120.job.json`` is the control plane's state, written first; a
checkpoint counts only when both exist, so a crash between the two leaves the previous one in force.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import msgspec

from rollart.config.training import CheckpointConfig
from rollart.events import CheckpointSaved, EventSink
from rollart.runtime.offload import offload
from rollart.runtime.runtime import WorkerHandle

SAVE_SECONDS = 3600.0
"""Deadline of one checkpoint."""


class JobState(msgspec.Struct, frozen=True):
    """What the control plane needs to continue after W_version.

    Attributes:
        version: k of W_k; the next batch is k.
        next_group: Index of the next group.
        cursors: First task that was never given out, by domain.
        checkpoint: The trainer's folder (filled in when read).
    """

    version: int
    next_group: int
    cursors: dict[str, int]
    checkpoint: str = ""


class Checkpoints:
    """Writes and prunes the checkpoints of one run."""

    def __init__(self, folder: Path, config: CheckpointConfig, trainer: WorkerHandle, sink: EventSink) -> None:
        self._folder = folder / "checkpoints"
        self._config = config
        self._trainer = trainer
        self._sink = sink

    def due(self, version: int) -> bool:
        return self._config.every > 0 and version % self._config.every == 0

    async def save(self, state: JobState) -> Path:
        """Write a checkpoint; the trainer removes those beyond the keep-count."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        target = self._folder / f"step_{state.version:06d}"
        await offload(_write_state, state_file(target), state)
        await self._trainer.call("save", str(target), timeout=SAVE_SECONDS)
        self._sink.emit(CheckpointSaved(state.version, str(target), loop.time() - began))
        await offload(_forget_pruned, self._folder)
        return target


def state_file(checkpoint: Path) -> Path:
    """The control plane's state that belongs to a trainer's folder."""
    return checkpoint.with_name(checkpoint.name + ".job.json")


def latest(run_folder: Path) -> JobState:
    """The newest complete checkpoint of a run.

    Raises:
        FileNotFoundError: the run has none; the message says where it was looked for.
    """
    folder = run_folder / "checkpoints"
    for checkpoint in sorted(_complete(folder), reverse=True):
        state = msgspec.json.decode(state_file(checkpoint).read_bytes(), type=JobState)
        return msgspec.structs.replace(state, checkpoint=str(checkpoint))
    raise FileNotFoundError(
        f"no complete checkpoint in {folder}: set training.checkpoint.every to have some, or start the run anew"
    )


def _complete(folder: Path) -> list[Path]:
    return [path for path in folder.glob("step_*") if path.is_dir() and state_file(path).is_file()]


def _write_state(path: Path, state: JobState) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    with temporary.open("wb") as file:
        file.write(msgspec.json.encode(state))
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def _forget_pruned(folder: Path) -> None:
    """Delete the states of checkpoints that the trainer has removed."""
    for state in folder.glob("step_*.job.json"):
        if not (folder / state.name.removesuffix(".job.json")).is_dir():
            state.unlink()
