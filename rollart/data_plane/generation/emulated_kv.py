"""Sessions whose keys and values take room: what is kept between turns gives way to what runs.

Invariants:

* ``kept`` is the sum of the tokens kept for sessions that do not run;
* what is kept for the session that rested first goes first, the end of its history before the start, as with vLLM's
  blocks; the session itself stays, and what it lost is computed again.

Called by :class:`~rollart.data_plane.generation.emulated.EmulatedCore`.
"""

from __future__ import annotations

from rollart.data_plane.generation.sessions import Session, SessionTable


class KvSessions(SessionTable):
    """See the module docstring.

    Attributes:
        kept: Tokens whose keys and values are kept for sessions that do not run.
    """

    def __init__(self, slots: int) -> None:
        super().__init__(slots)
        self.kept = 0
        self._kept: dict[Session, int] = {}

    def rest(self, session: Session) -> None:
        super().rest(session)
        if session.slot >= 0 and session not in self._kept:
            self._kept[session] = session.kv_length
            self.kept += session.kv_length

    def drop(self, session: Session) -> None:
        self.take(session)
        super().drop(session)

    def take(self, session: Session) -> None:
        """The session runs: its tokens are the running requests' now."""
        self.kept -= self._kept.pop(session, 0)

    def limit(self, room: int) -> None:
        """Let go of what rested first, until at most ``room`` tokens are kept."""
        while (excess := self.kept - room) > 0 and self._kept:
            session = next(iter(self._kept))
            if excess >= self._kept[session]:
                self.take(session)
                session.kv_length = 0
            else:
                self._kept[session] -= excess
                self.kept -= excess
                session.kv_length = min(session.kv_length, self._kept[session])

    def forget_kv(self) -> None:
        super().forget_kv()
        self._kept.clear()
        self.kept = 0
