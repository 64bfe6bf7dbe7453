"""The folder of a run: what lies where, how a new one is made, and how an existing one is found.

===========================  =========================================================
``config.yaml``              the configuration as it ran, overrides and defaults included
``events/*.jsonl``           the event log
``model/``                   tokenizer and configuration of the policy
``checkpoints/step_<k>/``    Hugging Face model folders of W_k
``trajectories/*.msgpack``   sampled trajectories, one file a batch
``summary.json``             the numbers of the run (docs/summary_json.md)
``report.html``              the report
``lock``                     held by the process that runs it
===========================  =========================================================

Invariants: one process at a time writes to a run folder, and no run is ever overwritten: an earlier run of
the same name moves aside.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import yaml

from rollart.cli.errors import UserError
from rollart.config.config import Config

CONFIG_FILE = "config.yaml"
EVENTS = "events"
LOCK = "lock"


@contextmanager
def new_run_folder(config: Config) -> Iterator[tuple[Path, Path | None]]:
    """Create ``run.dir/run.name``, hold it while the run lasts, and write the configuration into it.

    Yields:
        The folder, and where an earlier run of the same name was moved, if there was one.

    Raises:
        UserError: the folder is in use, holds something that is no run, or cannot be written.
    """
    folder = Path(config.run.dir) / config.run.name
    try:
        moved = _move_aside(folder)
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unwritable(folder, error) from error
    with _held(folder):
        write_config(folder, config)
        yield folder, moved


@contextmanager
def resumed_run_folder(folder: Path, config: Config) -> Iterator[Path]:
    """Hold the folder of an earlier run that is continued.

    Raises:
        UserError: it is in use, or cannot be written.
    """
    with _held(folder):
        write_config(folder, config)
        yield folder


def write_config(folder: Path, config: Config) -> None:
    """Write the whole configuration, so that the run can be repeated from its folder.

    Raises:
        UserError: it cannot be written.
    """
    text = yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False)
    try:
        (folder / CONFIG_FILE).write_text(text, encoding="utf-8")
    except OSError as error:
        raise _unwritable(folder, error) from error


def _move_aside(folder: Path) -> Path | None:
    """Give way to a new run: an earlier one gets the next free number."""
    if not folder.exists() or not any(folder.iterdir()):
        return None
    if not (folder / CONFIG_FILE).is_file():
        raise UserError(f"{folder}: holds something that is no run: choose another run.name or run.dir")
    with _held(folder):
        number = 1
        while (aside := folder.with_name(f"{folder.name}.{number}")).exists():
            number += 1
        folder.rename(aside)
    return aside


@contextmanager
def _held(folder: Path) -> Iterator[None]:
    """Hold the folder's lock; the kernel frees it with the process, however that ends."""
    try:
        lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise _unwritable(folder, error) from error
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(f"{folder}: this run is going on in another process: choose another run.name") from None
        yield
    finally:
        os.close(lock)


def _unwritable(folder: Path, error: OSError) -> UserError:
    return UserError(f"{folder}: the run folder cannot be written: {error.strerror or error}: change run.dir")


def existing_run_folder(folder: Path) -> Path:
    """``folder``, checked to hold an event log.

    Raises:
        UserError: it does not.
    """
    if not folder.is_dir():
        raise UserError(f"{folder}: no such run folder: give runs/NAME")
    if not any((folder / EVENTS).glob("*.jsonl")):
        raise UserError(f"{folder}: has no event log (events/*.jsonl): give the folder of a run")
    return folder
