"""Checkpoints of a run: the trainer's folder plus the job's own state.

``checkpoints/step_000120/`` is a Hugging Face model folder with the optimizer's state, written by the
trainer atomically. ``checkpoints/step_000120.job.json`` is the control plane's state, written atomically and
first, so a crash between the two leaves the previous checkpoint in force.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import msgspec

from rollart.config.config import Config
from rollart.config.training import CheckpointConfig
from rollart.control_plane.job_state import SCHEMA_VERSION, JobState, mismatches
from rollart.events import CheckpointSaved, EventSink
from rollart.runtime.offload import offload
from rollart.runtime.runtime import WorkerHandle

SAVE_SECONDS = 3600.0
"""Deadline of one checkpoint."""


class CheckpointError(RuntimeError):
    """A checkpoint that cannot be resumed from; the message says which, why and what to do."""


class _Layout(msgspec.Struct):
    """The one field that every layout of the state has; layout 0 had no number."""

    schema: int = 0


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
        relative = str(target.relative_to(self._folder.parent))
        self._sink.emit(CheckpointSaved(state.version, relative, loop.time() - began))
        await offload(_forget_pruned, self._folder)
        return target

    async def renew(self, state: JobState, checkpoint: Path) -> None:
        """Write the control plane's state anew beside a checkpoint of the same version."""
        await offload(_write_state, state_file(checkpoint), state)


def state_file(checkpoint: Path) -> Path:
    """The control plane's state that belongs to a trainer's folder."""
    return checkpoint.with_name(checkpoint.name + ".job.json")


def newest(run_folder: Path) -> Path:
    """The trainer's folder of the newest checkpoint of a run.

    Raises:
        FileNotFoundError: the run has none; the message says where it was looked for.
    """
    folder = run_folder / "checkpoints"
    found = max((path for path in folder.glob("step_*") if path.is_dir()), default=None)
    if found is None:
        raise FileNotFoundError(
            f"no complete checkpoint in {folder}: set training.checkpoint.every to have some, or start the run anew"
        )
    return found


def latest(run_folder: Path) -> JobState:
    """The state of the newest checkpoint of a run.

    Raises:
        FileNotFoundError: the run has no checkpoint.
        CheckpointError: the control plane's state is missing, damaged or of another layout.
    """
    checkpoint = newest(run_folder)
    file = state_file(checkpoint)
    remedy = (
        f"move {checkpoint.name} away to resume from an older one, or start a new run from its weights with "
        f"model.path={checkpoint}"
    )
    try:
        content = file.read_bytes()
        layout = msgspec.json.decode(content, type=_Layout).schema
        if layout != SCHEMA_VERSION:
            raise CheckpointError(
                f"{file} has layout {layout}, this version reads {SCHEMA_VERSION}: resume with the version that wrote "
                f"it, or start a new run from its weights with model.path={checkpoint}"
            )
        state = msgspec.json.decode(content, type=JobState)
    except FileNotFoundError as error:
        raise CheckpointError(f"the checkpoint {checkpoint} has no {file.name} beside it: {remedy}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{file} is damaged ({error}): {remedy}") from error
    return msgspec.structs.replace(state, checkpoint=str(checkpoint))


def resumable(run_folder: Path, config: Config) -> JobState:
    """The state of the newest checkpoint, if a run can go on from it with this configuration.

    Raises:
        FileNotFoundError, CheckpointError: as :func:`latest`; or settings that must not change have changed.
    """
    state = latest(run_folder)
    if found := mismatches(state, config):
        raise CheckpointError(
            f"the run cannot go on from {state.checkpoint}: {'; '.join(found)}. Set them as they were, or start a new "
            f"run from its weights with model.path={state.checkpoint}"
        )
    if state.version > config.run.iterations:
        raise CheckpointError(
            f"{state.checkpoint} has trained {state.version} iterations, more than run.iterations="
            f"{config.run.iterations}: set run.iterations higher"
        )
    return state


def _write_state(path: Path, state: JobState) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    with temporary.open("wb") as file:
        file.write(msgspec.json.format(msgspec.json.encode(state)) + b"\n")
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def _forget_pruned(folder: Path) -> None:
    """Delete the states of checkpoints that the trainer has removed."""
    for state in folder.glob("step_*.job.json"):
        if not (folder / state.name.removesuffix(".job.json")).is_dir():
            state.unlink()
