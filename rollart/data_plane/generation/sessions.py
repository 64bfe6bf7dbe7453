"""Sessions of an engine: whose history it holds, in which slot, and which session gives way.

A session is a trajectory's history on this engine. Invariants:

* at most ``slots`` sessions have a slot, each one of its own; the lowest free slot is taken first, so that
  busy slots lie close together;
* a session with a request in flight is never evicted; among the others the least recently used is;
* a session without a request in flight has a slot.

Who calls it: :class:`~rollart.data_plane.generation.requests.RequestCore`, for every engine.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict

from rollart.types import HASH_START, GenerationRequest, GenerationResult, TrajectoryId


class Session:
    """One trajectory's history on this engine.

    Attributes:
        trajectory: Whose.
        slot: Its place; -1 while it waits for its first one.
        length: Tokens in the history before the request in flight.
        hash: Rolling hash of these tokens.
        kv_length: How many of these have keys and values under the present weights.
        request: The request in flight.
        turn_start: (length, hash) before the last request, to which a new attempt of it may return.
        prompt_length: Length at which generation of the request in flight began; -1 while it waits.
        cached_tokens: Prompt tokens of the request in flight whose KV was reused.
        marks: (length, version) where a version took over in the action of the request in flight.
        answers: By (turn, attempt), for repeated submissions.
    """

    __slots__ = (
        "answers",
        "cached_tokens",
        "hash",
        "kv_length",
        "length",
        "marks",
        "prompt_length",
        "request",
        "slot",
        "trajectory",
        "turn_start",
    )

    def __init__(self, trajectory: TrajectoryId) -> None:
        self.trajectory = trajectory
        self.slot = -1
        self.length = 0
        self.hash = HASH_START
        self.kv_length = 0
        self.request: GenerationRequest | None = None
        self.turn_start = (0, HASH_START)
        self.prompt_length = -1
        self.cached_tokens = 0
        self.marks: list[tuple[int, int]] = []
        self.answers: dict[tuple[int, int], GenerationResult] = {}


class SessionTable:
    """All sessions of an engine with ``slots`` slots."""

    def __init__(self, slots: int) -> None:
        self._free = list(range(slots))  # a heap
        self._sessions: dict[TrajectoryId, Session] = {}
        self._idle: OrderedDict[TrajectoryId, Session] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sessions)

    def get(self, trajectory: TrajectoryId) -> Session | None:
        return self._sessions.get(trajectory)

    def open(self, trajectory: TrajectoryId) -> Session:
        """A new session without a slot, in use."""
        session = self._sessions[trajectory] = Session(trajectory)
        return session

    def use(self, session: Session) -> None:
        """The session has a request in flight and may not be evicted."""
        self._idle.pop(session.trajectory, None)

    def rest(self, session: Session) -> None:
        """The session has been used last, and may be evicted; one without a slot is dropped."""
        if session.slot < 0:
            self.drop(session)
        else:
            self._idle[session.trajectory] = session

    def give_slot(self, session: Session) -> bool:
        """Make sure the session has a slot, if need be the least recently used idle one's; False if all are in use."""
        if session.slot >= 0:
            return True
        if not self._free:
            if not self._idle:
                return False
            self.drop(next(iter(self._idle.values())))
        session.slot = heapq.heappop(self._free)
        return True

    def drop(self, session: Session) -> None:
        """Forget a session and free its slot."""
        self._sessions.pop(session.trajectory, None)
        self._idle.pop(session.trajectory, None)
        if session.slot >= 0:
            heapq.heappush(self._free, session.slot)
            session.slot = -1

    def forget_kv(self) -> None:
        """All keys and values are out of date."""
        for session in self._sessions.values():
            session.kv_length = 0
