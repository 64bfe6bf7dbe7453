"""The metadata store: small shared records that several processes read, change and watch.

Keys are paths (``pools/gpu``), values bytes. Every change of the store has a *revision*, counted from 1 up;
an entry's version is the revision of its last change, so a compare-and-set sees any change in between. An
entry put under a lease vanishes when its owner stops keeping the lease alive. Watching is a long poll from a
revision on.

The interface asks for nothing that Redis lacks: versions in a hash and a script for compare-and-set,
expiring keys for leases, a stream for watching. Here are the store in this process's memory, and a client
of one that a worker hosts (on a shared Ray cluster: :mod:`rollart.resource_plane.job_resources`).
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from typing import Any

import msgspec

from rollart.runtime.runtime import WorkerError, WorkerHandle

ABSENT = 0
"""The version of a key that does not exist, for compare-and-set."""

HISTORY = 4096
"""Changes remembered for watchers; one that asks for older ones is told to list again."""


class Entry(msgspec.Struct, frozen=True):
    """A value and the revision of its last change."""

    value: bytes
    version: int


class Change(msgspec.Struct, frozen=True):
    """One change; ``entry`` is None for a deletion (an expired lease included)."""

    key: str
    revision: int
    entry: Entry | None


class Changes(msgspec.Struct, frozen=True):
    """What a watch saw.

    Attributes:
        changes: In order, those under the prefix only.
        revision: Watch from here the next time.
        complete: False if changes since the asked revision are forgotten, or the revision is of another store:
            list the prefix again.
    """

    changes: tuple[Change, ...]
    revision: int
    complete: bool = True


class LeaseExpired(LookupError):
    """The lease is unknown or its time is over."""


class MetadataStore(ABC):
    """See the module docstring."""

    @abstractmethod
    async def get(self, key: str) -> Entry | None: ...

    @abstractmethod
    async def put(self, key: str, value: bytes, lease: int | None = None) -> int:
        """Set a key whatever it holds. Returns its new version. Raises LeaseExpired."""

    @abstractmethod
    async def compare_and_set(self, key: str, value: bytes, expected: int, lease: int | None = None) -> int | None:
        """Set a key if its version is ``expected`` (``ABSENT``: if it does not exist).

        Returns:
            The new version, or None if the key has another version.

        Raises:
            LeaseExpired: ``lease`` is not valid.
        """

    @abstractmethod
    async def delete(self, key: str, expected: int | None = None) -> bool:
        """Delete a key (only at version ``expected``, if given). Returns whether it was deleted."""

    @abstractmethod
    async def list(self, prefix: str) -> dict[str, Entry]:
        """All entries whose key starts with ``prefix``, by key in order."""

    @abstractmethod
    async def grant(self, seconds: float) -> int:
        """A new lease that ends ``seconds`` after it was last kept alive."""

    @abstractmethod
    async def keep_alive(self, lease: int) -> None:
        """Start a lease's time anew. Raises LeaseExpired."""

    @abstractmethod
    async def revoke(self, lease: int) -> None:
        """End a lease now and delete its entries. An unknown lease is ignored."""

    @abstractmethod
    async def watch(self, prefix: str, after: int, max_wait: float) -> Changes:
        """Changes under ``prefix`` later than revision ``after``; waits up to ``max_wait`` seconds for the first."""


class _Lease:
    def __init__(self, seconds: float, until: float) -> None:
        self.seconds = seconds
        self.until = until
        self.keys: set[str] = set()


class MemoryStore(MetadataStore):
    """The store in memory. Time is the event loop's; nothing blocks, so every method is atomic."""

    def __init__(self) -> None:
        self._entries: dict[str, Entry] = {}
        self._leases: dict[int, _Lease] = {}
        self._lease_of: dict[str, int] = {}
        self._history: deque[Change] = deque(maxlen=HISTORY)
        self._revision = 0
        self._granted = 0
        self._changed = asyncio.Event()

    async def get(self, key: str) -> Entry | None:
        self._expire()
        return self._entries.get(key)

    async def put(self, key: str, value: bytes, lease: int | None = None) -> int:
        self._expire()
        return self._set(key, value, lease)

    async def compare_and_set(self, key: str, value: bytes, expected: int, lease: int | None = None) -> int | None:
        self._expire()
        present = self._entries.get(key)
        if (ABSENT if present is None else present.version) != expected:
            return None
        return self._set(key, value, lease)

    async def delete(self, key: str, expected: int | None = None) -> bool:
        self._expire()
        present = self._entries.get(key)
        if present is None or expected not in (None, present.version):
            return False
        self._remove(key)
        return True

    async def list(self, prefix: str) -> dict[str, Entry]:
        self._expire()
        return {key: self._entries[key] for key in sorted(self._entries) if key.startswith(prefix)}

    async def grant(self, seconds: float) -> int:
        self._expire()
        self._granted += 1
        self._leases[self._granted] = _Lease(seconds, self._now() + seconds)
        return self._granted

    async def keep_alive(self, lease: int) -> None:
        self._expire()
        held = self._lease(lease)
        held.until = self._now() + held.seconds

    async def revoke(self, lease: int) -> None:
        self._expire()
        self._end_lease(lease)

    async def watch(self, prefix: str, after: int, max_wait: float) -> Changes:
        deadline = self._now() + max_wait
        while True:
            self._expire()
            oldest = self._history[0].revision if self._history else self._revision + 1
            if after + 1 < oldest or after > self._revision:
                return Changes((), self._revision, complete=False)
            seen = tuple(each for each in self._history if each.revision > after and each.key.startswith(prefix))
            if seen or self._now() >= deadline:
                return Changes(seen, self._revision)
            after = self._revision
            await self._wait(deadline)

    async def _wait(self, deadline: float) -> None:
        """Until something changes, a lease may have ended, or the deadline."""
        until = min([deadline, *(lease.until for lease in self._leases.values())])
        try:
            async with asyncio.timeout_at(until):
                await self._changed.wait()
        except TimeoutError:
            return

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()

    def _lease(self, lease: int) -> _Lease:
        try:
            return self._leases[lease]
        except KeyError:
            raise LeaseExpired(f"lease {lease} is over: its owner did not keep it alive; ask for a new one") from None

    def _set(self, key: str, value: bytes, lease: int | None) -> int:
        holder = None if lease is None else self._lease(lease)
        self._unlease(key)
        if lease is not None and holder is not None:
            holder.keys.add(key)
            self._lease_of[key] = lease
        self._entries[key] = entry = Entry(value, self._revision + 1)
        self._record(key, entry)
        return entry.version

    def _remove(self, key: str) -> None:
        self._unlease(key)
        del self._entries[key]
        self._record(key, None)

    def _unlease(self, key: str) -> None:
        lease = self._lease_of.pop(key, None)
        if lease is not None:
            self._leases[lease].keys.discard(key)

    def _record(self, key: str, entry: Entry | None) -> None:
        self._revision += 1
        self._history.append(Change(key, self._revision, entry))
        self._changed.set()
        self._changed = asyncio.Event()

    def _expire(self) -> None:
        now = self._now()
        for lease in [number for number, held in self._leases.items() if held.until <= now]:
            self._end_lease(lease)

    def _end_lease(self, lease: int) -> None:
        held = self._leases.get(lease)
        if held is None:
            return
        for key in sorted(held.keys):
            self._remove(key)
        del self._leases[lease]


class HostedStore(MetadataStore):
    """A client of a :class:`MemoryStore` that a worker hosts; as many processes as like may have one.

    Args:
        handle: The worker.
        timeout: Seconds for one call, on top of a watch's own wait.
    """

    def __init__(self, handle: WorkerHandle, timeout: float = 10.0) -> None:
        self._handle = handle
        self._timeout = timeout

    async def get(self, key: str) -> Entry | None:
        entry: Entry | None = await self._call("get", key)
        return entry

    async def put(self, key: str, value: bytes, lease: int | None = None) -> int:
        version: int = await self._call("put", key, value, lease)
        return version

    async def compare_and_set(self, key: str, value: bytes, expected: int, lease: int | None = None) -> int | None:
        version: int | None = await self._call("compare_and_set", key, value, expected, lease)
        return version

    async def delete(self, key: str, expected: int | None = None) -> bool:
        deleted: bool = await self._call("delete", key, expected)
        return deleted

    async def list(self, prefix: str) -> dict[str, Entry]:
        entries: dict[str, Entry] = await self._call("list", prefix)
        return entries

    async def grant(self, seconds: float) -> int:
        lease: int = await self._call("grant", seconds)
        return lease

    async def keep_alive(self, lease: int) -> None:
        await self._call("keep_alive", lease)

    async def revoke(self, lease: int) -> None:
        await self._call("revoke", lease)

    async def watch(self, prefix: str, after: int, max_wait: float) -> Changes:
        changes: Changes = await self._call("watch", prefix, after, max_wait, wait=max_wait)
        return changes

    async def _call(self, method: str, *args: Any, wait: float = 0.0) -> Any:
        try:
            return await self._handle.call(method, *args, timeout=self._timeout + wait)
        except WorkerError as error:
            if error.cause_type == LeaseExpired.__name__:
                raise LeaseExpired(error.cause) from error
            raise
