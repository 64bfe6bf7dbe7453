"""The weight store on one host: one file a version in shared memory, which readers map.

A run owns the folder ``rollart-<run id>`` under ``/dev/shm``, or under the run's own folder when shared
memory is absent or too small. Invariants:

* A key is ``<file>/<bucket index>``. The file's name carries the run id, the writer and the version, and is
  never used twice: a restarted trainer is a new writer.
* A version's file appears under its name by rename, complete, and never changes afterwards; deleting it does
  not disturb who has mapped it. A version that could not be written whole leaves no file behind.
* Room is checked before the first byte, and the file is written with ``write``: on a mapping, running out of
  space would end the process by a signal instead of an error.
* A reader copies nothing: it maps the file copy-on-write and checks the bytes where they are (a tenth of the
  CPU time of a copy, whose fresh pages cost most). What a caller writes there stays its own.
* ``close`` deletes all that the writer published. What a killed run left is removed by the next writer on the
  machine, or by :func:`sweep`. Both spare a run whose writer lives: it holds a lock on its folder, which the
  kernel frees with its process.

Who calls it: the trainer holds a writer, every engine on the host a reader, the driver sweeps.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import mmap
import os
import re
import secrets
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import IO

import numpy as np
import xxhash

from rollart.data_plane.weights.layout import Slice, bucket_parts, checksum_of_bytes, layout, version_checksum
from rollart.data_plane.weights.store import (
    Bucket,
    Manifest,
    NamedBytes,
    WeightReader,
    WeightStoreError,
    WeightWriter,
)

SHARED_MEMORY = Path("/dev/shm")
FOLDER_PREFIX = "rollart-"
_LOCK_NAME = "lock"
_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")

_log = logging.getLogger(__name__)


def store_folder(root: Path, run: str) -> Path:
    """The folder that the store of run ``run`` has under ``root``.

    Raises:
        ValueError: ``run`` cannot be part of a file name.
    """
    if not _RUN_ID.fullmatch(run):
        raise ValueError(f"run id {run!r} must be letters, digits, '.', '_' and '-', starting with a letter or digit")
    return root / f"{FOLDER_PREFIX}{run}"


class SharedMemoryWriter(WeightWriter):
    """Publishes versions as files of this host.

    Args:
        run: Identity of the run, unique on this machine while the run lives.
        bucket_bytes: Size of a bucket.
        fallback: Folder (the run's) to use when shared memory is absent or too small.
        root: Where shared memory is mounted.
    """

    def __init__(self, run: str, bucket_bytes: int, fallback: Path, root: Path = SHARED_MEMORY) -> None:
        if bucket_bytes < 1:
            raise ValueError(f"bucket_bytes must be at least 1, not {bucket_bytes}")
        self._prefix = f"{run}.{os.getpid()}-{secrets.token_hex(4)}"
        self._bucket_bytes = bucket_bytes
        self._folders = (store_folder(root, run), store_folder(fallback, run))
        self._locks: dict[Path, IO[bytes]] = {}
        self._files: dict[int, Path] = {}
        self._newest = -1
        self._closed = False

    def publish(self, version: int, tensors: Sequence[NamedBytes]) -> Manifest:
        if self._closed:
            raise WeightStoreError(f"version {version} was not written: the weight store has been closed")
        if version <= self._newest:
            raise ValueError(f"version {version} is not newer than version {self._newest}, which was published before")
        entries, size = layout(tensors)
        path = self._choose_folder(version, size) / f"{self._prefix}.v{version}"
        self._files[version] = path
        try:
            buckets = _write(path, bucket_parts(entries, tensors, self._bucket_bytes))
        except BaseException as error:
            self._delete(version)
            if isinstance(error, OSError):
                raise _write_error(version, path, size, error) from error
            raise
        self._newest = version
        return Manifest(version, entries, buckets, size, version_checksum(b.checksum for b in buckets))

    def retain(self, oldest: int) -> None:
        for version in [version for version in self._files if version < oldest]:
            self._delete(version)

    def close(self) -> None:
        self._closed = True
        for version in list(self._files):
            self._delete(version)
        for folder, lock in self._locks.items():
            lock.close()
            _remove_if_unused(folder)
        self._locks.clear()

    def _choose_folder(self, version: int, size: int) -> Path:
        """The first folder with room for a whole version."""
        free: list[str] = []
        for position, folder in enumerate(self._folders):
            root = folder.parent
            if position:
                root.mkdir(parents=True, exist_ok=True)
            room = shutil.disk_usage(root).free if root.is_dir() else 0
            if room >= size and (position or os.access(root, os.W_OK)):
                self._open(folder, fell_back=bool(position), reason="; ".join(free))
                return folder
            free.append(f"{root} has {_mib(room)} free")
        raise WeightStoreError(
            f"version {version} needs {_mib(size)}, but {' and '.join(free)}: enlarge shared memory "
            f"(mount -o remount,size=... {self._folders[0].parent}, docker run --shm-size=...) or free disk space"
        )

    def _open(self, folder: Path, fell_back: bool, reason: str) -> None:
        if folder in self._locks:
            return
        try:
            self._locks[folder] = _lock_folder(folder)
        except OSError as error:
            raise WeightStoreError(f"cannot use {folder} as the weight store: {error}") from error
        sweep_dead(folder.parent)
        if fell_back:
            _log.warning("weights travel over the disk (%s), which is slower: %s", folder, reason)

    def _delete(self, version: int) -> None:
        path = self._files.pop(version)
        path.unlink(missing_ok=True)
        _partial(path).unlink(missing_ok=True)


class SharedMemoryReader(WeightReader):
    """Reads versions that a writer of the same run published on this host. Arguments as for the writer."""

    def __init__(self, run: str, fallback: Path, root: Path = SHARED_MEMORY) -> None:
        self._folders = (store_folder(root, run), store_folder(fallback, run))

    def pull(self, manifest: Manifest) -> np.ndarray:
        name = _file_name(manifest)
        flat = self._map(manifest, name)
        for index, bucket in enumerate(manifest.buckets):
            checksum = checksum_of_bytes(flat[bucket.offset : bucket.offset + bucket.size].data)
            if checksum != bucket.checksum:
                raise WeightStoreError(
                    f"version {manifest.version}, bucket {index} of {len(manifest.buckets)} ({bucket.key}): its "
                    f"checksum is {checksum}, the manifest says {bucket.checksum}; the damaged bytes are not used"
                )
        return flat

    def _map(self, manifest: Manifest, name: str) -> np.ndarray:
        where = f"version {manifest.version} ({name})"
        for folder in self._folders:
            try:
                with (folder / name).open("rb") as file:
                    length = os.fstat(file.fileno()).st_size
                    if length != manifest.size:
                        raise WeightStoreError(f"{where}: has {length} bytes, the manifest says {manifest.size}")
                    return np.frombuffer(mmap.mmap(file.fileno(), length, access=mmap.ACCESS_COPY), np.uint8)
            except FileNotFoundError:
                continue
            except OSError as error:
                raise WeightStoreError(f"{where}: cannot be read: {error}") from error
        raise WeightStoreError(f"{where}: is gone; it was deleted, or its writer has closed the store")


def _file_name(manifest: Manifest) -> str:
    """The file that holds a version.

    Raises:
        WeightStoreError: the manifest's buckets are not consecutive slices of one file, or not what its checksum says.
    """
    names = {bucket.key.rpartition("/")[0] for bucket in manifest.buckets}
    end = 0
    for bucket in manifest.buckets:
        end = end + bucket.size if bucket.offset == end and bucket.size > 0 else -1
    if len(names) != 1 or end != manifest.size:
        raise WeightStoreError(f"version {manifest.version}: the manifest does not cover the weights with its buckets")
    if version_checksum(bucket.checksum for bucket in manifest.buckets) != manifest.checksum:
        raise WeightStoreError(f"version {manifest.version}: the manifest does not match its own buckets' checksums")
    return names.pop()


def sweep(run: str, *roots: Path) -> int:
    """Delete what a dead run left in the store under ``roots`` (default: shared memory).

    Returns:
        The bytes freed; 0 if there was nothing, or if a writer of the run is alive.
    """
    return sum(_sweep_folder(store_folder(root, run)) for root in roots or (SHARED_MEMORY,))


def sweep_dead(root: Path = SHARED_MEMORY) -> int:
    """Delete the stores of all dead runs of this user under ``root``. Returns the bytes freed."""
    freed = 0
    for folder in root.glob(f"{FOLDER_PREFIX}*"):
        with contextlib.suppress(FileNotFoundError):  # its run ended at this moment
            if folder.stat().st_uid == os.getuid():
                freed += _sweep_folder(folder)
    return freed


def _sweep_folder(folder: Path) -> int:
    try:
        lock = (folder / _LOCK_NAME).open("rb")
    except (FileNotFoundError, NotADirectoryError):
        return 0
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return 0
        if not (folder / _LOCK_NAME).exists():
            return 0  # another sweep was faster
        freed = sum(path.stat().st_size for path in folder.iterdir())
        shutil.rmtree(folder)
        return freed


def _lock_folder(folder: Path) -> IO[bytes]:
    """Create the folder and hold its shared lock, also if a sweep removes it at the same moment."""
    path = folder / _LOCK_NAME
    while True:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            lock = path.open("ab")
        except FileNotFoundError:
            continue
        fcntl.flock(lock, fcntl.LOCK_SH)
        try:
            if os.path.samestat(path.stat(), os.fstat(lock.fileno())):
                return lock
        except FileNotFoundError:
            pass
        lock.close()


def _remove_if_unused(folder: Path) -> None:
    """Remove the folder unless another writer of the run still uses it."""
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return
    if names == [_LOCK_NAME]:
        _sweep_folder(folder)


def _write(path: Path, parts_by_bucket: Iterable[tuple[Slice, Iterable[memoryview]]]) -> tuple[Bucket, ...]:
    """Write a version; checksums are of what was meant to be written."""
    buckets: list[Bucket] = []
    partial = _partial(path)
    with partial.open("xb") as file:
        for index, (piece, parts) in enumerate(parts_by_bucket):
            state = xxhash.xxh3_64()
            for part in parts:
                state.update(part)
                file.write(part)
            buckets.append(Bucket(f"{path.name}/{index}", piece.offset, piece.size, state.hexdigest()))
    partial.rename(path)
    return tuple(buckets)


def _partial(path: Path) -> Path:
    return path.with_name(f"{path.name}.partial")


def _write_error(version: int, path: Path, size: int, error: OSError) -> WeightStoreError:
    cause = "the store is full" if error.errno in (errno.ENOSPC, errno.EDQUOT) else str(error)
    return WeightStoreError(
        f"version {version} could not be written to {path.parent}: {cause}; a version takes {_mib(size)}, and the "
        "newest few are kept at the same time"
    )


def _mib(size: int) -> str:
    return f"{size / 2**20:.1f} MiB"
