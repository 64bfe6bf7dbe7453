"""The event log: one typed record for each thing that happened in a run.

All accounting, metrics, reports and timelines derive from these records and from nothing else. One
shard a process, ordered by (process, sequence); readers merge them. Lifecycle records are always
written, turn records are switchable, nothing is written per token.

A shard is a JSON-lines file ``events/<process>.jsonl``: the first line is a :class:`Header`, every
other line an envelope ``{"n": sequence, "t": seconds, "e": {"type": ..., ...}}`` where ``t`` is the
control plane's clock minus its value at the start of the run. A resumed run appends to its shards: each
start writes a header of its own, and readers shift the records after it by the headers' wall times.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from operator import itemgetter
from pathlib import Path
from typing import IO, NamedTuple, Protocol

import msgspec

from rollart.types import EngineAddress, FailureKind, Outcome, Purpose, TrajectoryId

SCHEMA_VERSION = 1


class Header(msgspec.Struct, frozen=True):
    """First line of a shard."""

    schema: int
    run: str
    process: str
    wall_time: float
    """Unix time at ``t = 0``."""


class Event(msgspec.Struct, frozen=True, tag_field="type", tag=True):
    """Base of all records; the class name is the record's ``type``."""


class RunStarted(Event, frozen=True):
    mode: str
    alpha: int
    seed: int
    iterations: int
    groups_per_batch: int
    group_size: int
    domains: dict[str, float]
    """Configured share by domain, summing to 1."""
    pools: dict[str, str]
    """Hardware class by pool."""


class RunEnded(Event, frozen=True):
    reason: str
    """``finished``, ``interrupted`` or ``failed: <first cause>``."""


class WorkerPlaced(Event, frozen=True):
    worker: str
    role: str
    pool: str
    hardware_class: str
    host: str


class WorkerRestarted(Event, frozen=True):
    """A lost worker is back: a new process in its place."""

    worker: str
    role: str
    pool: str
    host: str
    restart: int
    """How often it has been started again, failed starts included."""
    cause: str
    """Why it was lost, or why the start before this one failed."""
    seconds: float
    """From the loss until it was back."""


class Fallback(Event, frozen=True):
    """A binding or a dispatch took a compatible class instead of the one asked for."""

    subject: str
    wanted: str
    taken: str
    reason: str


class TrajectoryStarted(Event, frozen=True):
    id: TrajectoryId
    seed: int
    host: str


class FirstToken(Event, frozen=True):
    """The trajectory's start version became known."""

    id: TrajectoryId
    version: int


class TurnFinished(Event, frozen=True):
    """Optional (``log.turns``): one turn of one trajectory."""

    id: TrajectoryId
    turn: int
    engine: EngineAddress
    new_tokens: int
    cached_tokens: int
    generated_tokens: int
    seconds: float


class TrajectoryScored(Event, frozen=True):
    """The trajectory has finished and its reward is known; it may still end in any outcome."""

    id: TrajectoryId
    reward: float
    success: bool | None
    turns: int
    generated_tokens: int
    total_tokens: int
    start_version: int | None
    limit: str | None
    seconds: dict[str, float]


class TrajectoryEnded(Event, frozen=True):
    """The one outcome of a trajectory."""

    id: TrajectoryId
    outcome: Outcome
    failure: FailureKind | None = None
    message: str = ""
    generated_tokens: int = 0
    reward: float | None = None
    success: bool | None = None
    staleness: int | None = None
    """For ``trained``: batch index minus start version."""


class TrajectoryRetried(Event, frozen=True):
    failed: TrajectoryId
    retry: TrajectoryId
    delay: float


class GroupResolved(Event, frozen=True):
    domain: str
    group: int
    how: str
    """``ready``, ``stale``, ``lost``, ``filtered``, ``surplus``, ``abandoned``."""
    start_version: int | None = None


class BatchFormed(Event, frozen=True):
    index: int
    groups: dict[str, int]
    staleness: dict[int, int]
    """Number of trajectories whose tokens are trained, by staleness."""
    waited: float


class BatchCommitted(Event, frozen=True):
    index: int
    trajectories: int


class DomainSuspended(Event, frozen=True):
    domain: str
    reason: str


class ProtocolStep(Event, frozen=True):
    """One step of the training protocol has ended; ``seconds`` is how long it took."""

    step: str
    index: int
    version: int
    seconds: float


class TrainStepped(Event, frozen=True):
    index: int
    version: int
    seconds: float
    tokens: int
    metrics: dict[str, float]
    alarms: tuple[str, ...] = ()


class VersionPublished(Event, frozen=True):
    version: int
    bytes: int
    buckets: int
    seconds: float
    checksum: str


class EngineUpdated(Event, frozen=True):
    engine: EngineAddress
    version: int
    seconds: float
    checksum: str
    in_flight: int


class PoolBusy(Event, frozen=True):
    """Busy seconds of a worker since its last record, for utilisation and the timeline."""

    worker: str
    role: str
    pool: str
    since: float
    until: float
    busy: float
    running: int = 0
    waiting: int = 0


class Evaluated(Event, frozen=True):
    """Result of one evaluation pass over a domain's held-out instances."""

    domain: str
    version: int
    policy: str
    """``model`` or ``random``."""
    instances: int
    success: float | None
    """Share of the instances with a verdict; ``None`` if there is none."""
    reward: float | None
    failed: int
    """Instances without a score after the last retry; they count as neither success nor reward."""
    seconds: float


class EvaluationEnded(Event, frozen=True):
    """An evaluation trajectory's end, in the ledger of its own."""

    id: TrajectoryId
    success: bool | None
    reward: float | None
    failure: FailureKind | None = None


class CheckpointSaved(Event, frozen=True):
    version: int
    path: str
    """In the run folder."""
    seconds: float


class Alarm(Event, frozen=True):
    """Something a user should look at: training health, a suspended domain, a stall."""

    subject: str
    message: str


class Envelope(msgspec.Struct, frozen=True):
    """One line of a shard."""

    n: int
    t: float
    e: (
        RunStarted
        | RunEnded
        | WorkerPlaced
        | WorkerRestarted
        | Fallback
        | TrajectoryStarted
        | FirstToken
        | TurnFinished
        | TrajectoryScored
        | TrajectoryEnded
        | TrajectoryRetried
        | GroupResolved
        | BatchFormed
        | BatchCommitted
        | DomainSuspended
        | ProtocolStep
        | TrainStepped
        | VersionPublished
        | EngineUpdated
        | PoolBusy
        | Evaluated
        | EvaluationEnded
        | CheckpointSaved
        | Alarm
    )


class EventSink(Protocol):
    """Where components report; the only thing they know of the log."""

    def emit(self, event: Event) -> None: ...


class MemorySink:
    """Keeps the records in a list, for tests and for live displays."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def emit(self, event: Event) -> None:
        self.events.append(event)


class Tee:
    """Hands every record to several sinks."""

    def __init__(self, *sinks: EventSink) -> None:
        self._sinks = sinks

    def emit(self, event: Event) -> None:
        for sink in self._sinks:
            sink.emit(event)


class EventLog:
    """Writes one shard. Buffered by the file object; ``flush`` at step boundaries, ``close`` at the end.

    Raises:
        OSError: the disk is full or the folder cannot be written (the run stops with this cause).
    """

    def __init__(self, folder: Path, run: str, process: str, clock_now: float, wall_time: float, now: _Now) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._origin = clock_now
        self._now = now
        self._sequence = 0
        self._encoder = msgspec.json.Encoder()
        self._path = folder / f"{process}.jsonl"
        self._file: IO[bytes] = self._path.open("ab")
        if self._file.tell():
            self._file.write(b"\n")  # ends the line that a crash may have torn; readers skip it
        self._file.write(self._encoder.encode(Header(SCHEMA_VERSION, run, process, wall_time)) + b"\n")

    def emit(self, event: Event) -> None:
        line = self._encoder.encode({"n": self._sequence, "t": round(self._now() - self._origin, 6), "e": event})
        self._sequence += 1
        try:
            self._file.write(line + b"\n")
        except OSError as error:
            raise self._named(error) from error

    def flush(self) -> None:
        try:
            self._file.flush()
        except OSError as error:
            raise self._named(error) from error

    def close(self) -> None:
        try:
            self._file.close()
        except OSError as error:
            raise self._named(error) from error

    def _named(self, error: OSError) -> OSError:
        """The error with the file that could not be written; a write to an open file does not know its name."""
        return OSError(error.errno, error.strerror, str(self._path))


class _Now(Protocol):
    def __call__(self) -> float: ...


def read_events(folder: Path) -> Iterator[Envelope]:
    """Merge all shards of a run by time, then (process, sequence); ``t`` counts from the first start of the run.

    The files are read as the records are taken, so that a log of any length takes little memory. A line that a
    crash tore, the last of a shard or the last before a restart's header, is left out.

    Raises:
        FileNotFoundError: no shard in ``folder``.
        ValueError: a shard has another schema version (the message names both) or a damaged line.
    """
    shards = sorted(folder.glob("*.jsonl"))
    if not shards:
        raise FileNotFoundError(f"no event log in {folder}: is this a run folder?")
    sessions = [session for shard in shards for session in _sessions(shard)]
    origin = min((session.header.wall_time for session in sessions), default=0.0)
    for *_, envelope in heapq.merge(*(_records(session, origin) for session in sessions), key=itemgetter(0, 1, 2, 3)):
        yield envelope


class _Session(NamedTuple):
    """One start of a process: its records are the bytes from ``begin`` to ``end`` of its shard."""

    shard: Path
    header: Header
    begin: int
    end: int


def _sessions(shard: Path) -> Iterator[_Session]:
    header: Header | None = None
    begin = position = 0
    with shard.open("rb") as file:
        for line in file:
            if line.startswith(b'{"schema"'):
                if header is not None:
                    yield _Session(shard, header, begin, position)
                header, begin = _header(shard, line), position + len(line)
            position += len(line)
    if header is not None:
        yield _Session(shard, header, begin, position)


def _header(shard: Path, line: bytes) -> Header | None:
    """A header; ``None`` if a crash tore it, so that nothing was written after it."""
    try:
        header = msgspec.json.decode(line, type=Header)
    except msgspec.DecodeError:
        return None
    if header.schema != SCHEMA_VERSION:
        raise ValueError(f"{shard} has event schema {header.schema}, this version reads {SCHEMA_VERSION}")
    return header


def _records(session: _Session, origin: float) -> Iterator[tuple[float, str, float, int, Envelope]]:
    """The records of one start, in order, each after what it is merged by."""
    shard, header, position, end = session
    shift = header.wall_time - origin
    decoder = msgspec.json.Decoder(Envelope)
    count = 0
    damage: msgspec.DecodeError | None = None
    with shard.open("rb") as file:
        file.seek(position)
        while position < end and (line := file.readline()):
            position += len(line)
            if line == b"\n":
                continue
            if damage is not None:
                raise ValueError(f"{shard} has a damaged record after {header.process}:{count}: {damage}") from damage
            try:
                envelope = decoder.decode(line)
            except msgspec.DecodeError as error:
                damage = error
                continue
            count += 1
            t = round(envelope.t + shift, 6)
            yield t, shard.name, shift, envelope.n, Envelope(envelope.n, t, envelope.e)


def purpose_of(event: TrajectoryEnded | TrajectoryScored | TrajectoryStarted) -> Purpose:
    """The purpose of the trajectory that a lifecycle record speaks of."""
    return event.id.purpose
