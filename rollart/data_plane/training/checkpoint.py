"""Checkpoints: a Hugging Face model folder with the trainer's state beside it.

Layout of ``<folder>``: the model (``config.json``, ``model.safetensors``, tokenizer files), usable by any
tool, and ``trainer/`` with ``state.json`` and ``optimizer.safetensors``.

Invariants:

* a folder of that name is complete: it is written beside, synced to disk, and renamed;
* a failed save leaves the previous checkpoint, and no partial one;
* nothing is pickled;
* loading restores weights, optimizer and random state to the bit.

Who calls it: :mod:`rollart.data_plane.training.torch_trainer`.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import msgspec
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoTokenizer, PreTrainedModel

from rollart.data_plane.training.models import ModelError, write_model, write_tensors

SCHEMA_VERSION = 1

_STATE = Path("trainer", "state.json")
_TENSORS = Path("trainer", "optimizer.safetensors")
_TOKENIZER_FILES = re.compile(
    r"(tokenizer.*|special_tokens_map|added_tokens|vocab|chat_template)\.(json|jinja|model|txt)|merges\.txt|spiece\.model"
)


class TrainerState(msgspec.Struct, frozen=True):
    """What a trainer needs besides tensors.

    Attributes:
        schema: Version of this layout.
        version: k of the W_k in the folder.
        checksum: Of the weights, as a manifest would have it, with this bucket size.
        bucket_bytes: See above.
    """

    schema: int
    version: int
    checksum: str
    bucket_bytes: int


def save_checkpoint(
    folder: Path, model: PreTrainedModel, tokenizer_from: str | Path, state: TrainerState, tensors: Mapping[str, Tensor]
) -> None:
    """Write a checkpoint; an older one of the same name is replaced.

    Args:
        folder: Where.
        model: Its weights and configuration.
        tokenizer_from: Folder or hub id whose tokenizer goes along.
        state, tensors: The trainer's.

    Raises:
        OSError: the disk is full or the folder cannot be written; whatever was there before still is.
    """
    with _appears_whole(folder) as partial:
        write_model(model, partial)
        _copy_tokenizer(tokenizer_from, partial)
        (partial / _STATE).parent.mkdir()
        write_tensors({name: tensor.detach().cpu() for name, tensor in tensors.items()}, partial / _TENSORS)
        (partial / _STATE).write_bytes(msgspec.json.format(msgspec.json.encode(state)) + b"\n")


def load_state(folder: Path) -> tuple[TrainerState, dict[str, Tensor]]:
    """The trainer's part of a checkpoint.

    Raises:
        ModelError: the folder is no checkpoint, is damaged, or has another layout.
    """
    try:
        state = msgspec.json.decode((folder / _STATE).read_bytes(), type=TrainerState)
        tensors = load_file(folder / _TENSORS)
    except FileNotFoundError as error:
        raise ModelError(
            f"{folder} cannot be resumed from: it has no {Path(error.filename or _TENSORS).name}. Give the folder "
            "of a checkpoint, or start anew from its weights with model.path"
        ) from error
    except (msgspec.DecodeError, SafetensorError) as error:
        raise ModelError(f"the checkpoint {folder} is damaged ({error}): resume from an older one") from error
    if state.schema != SCHEMA_VERSION:
        raise ModelError(f"the checkpoint {folder} has layout {state.schema}, this version reads {SCHEMA_VERSION}")
    return state, tensors


def prune(newest: Path, keep: int) -> list[Path]:
    """Delete all but ``keep`` checkpoints of the series that ``newest`` belongs to, and return the deleted ones.

    A series is the complete checkpoints beside each other whose names differ in a number at the end
    (``step-10``, ``step-20``); ``newest`` always stays, and a name without a number is a series of its own.
    """
    series = re.fullmatch(r"(.*?)(\d+)", newest.name)
    if series is None:
        return []
    numbered: list[tuple[int, Path]] = []
    for folder in newest.parent.iterdir():
        match = re.fullmatch(re.escape(series[1]) + r"(\d+)", folder.name)
        if match and folder != newest and (folder / _STATE).is_file():
            numbered.append((int(match[1]), folder))
    doomed = [folder for _, folder in sorted(numbered, reverse=True)[keep - 1 :]]
    for folder in doomed:
        shutil.rmtree(folder)
    return doomed


def _copy_tokenizer(source: str | Path, target: Path) -> None:
    folder = Path(source).expanduser()
    if not folder.is_dir():
        AutoTokenizer.from_pretrained(str(source)).save_pretrained(target)
        return
    for file in sorted(folder.iterdir()):
        if file.is_file() and _TOKENIZER_FILES.fullmatch(file.name):
            shutil.copyfile(file, target / file.name)


@contextmanager
def _appears_whole(folder: Path) -> Iterator[Path]:
    """A new folder beside ``folder``, which takes its place when the block ends without an error."""
    partial = folder.with_name(f".{folder.name}.{os.getpid()}.partial")
    replaced = folder.with_name(f".{folder.name}.{os.getpid()}.replaced")
    try:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        yield partial
        for path in [*partial.rglob("*"), partial]:
            _sync(path)
        if folder.exists():
            folder.rename(replaced)
        partial.rename(folder)
        _sync(folder.parent)
    except OSError as error:
        raise _explained(error, folder) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
        if replaced.exists() and not folder.exists():
            replaced.rename(folder)
        shutil.rmtree(replaced, ignore_errors=True)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _explained(error: OSError, folder: Path) -> OSError:
    text = str(error)
    if error.errno in (errno.ENOSPC, errno.EDQUOT) or "No space left" in text:
        cause, remedy = "the disk is full", "free some space, or set run.dir"
    elif isinstance(error, PermissionError) or error.errno == errno.EROFS:
        cause, remedy = "the folder cannot be written", "make it writable, or set run.dir"
    else:
        cause, remedy = text, "mend that, then resume the run"
    return OSError(
        error.errno or errno.EIO,
        f"the checkpoint {folder} was not saved: {cause}; earlier checkpoints are untouched ({remedy})",
    )
