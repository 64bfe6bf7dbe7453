"""Barriers: where trajectories wait for each other in lock-step interaction and in stage-wise scoring.

Pure but for the callbacks it is given. Invariants: everyone who arrives leaves exactly once, by release (``go``) or by
excuse (``excused``); nobody waits once everyone who is expected has arrived, so a barrier whose members all end or
arrive never holds anybody for good.

Called by :class:`~rollart.control_plane.stages.Stages`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)


class Barrier(Generic[Key]):
    """Holds whoever arrives until everyone who is expected has arrived, then lets all go, first come first.

    Args:
        lasting: Whether members are expected again after a release.
        released: Called with those that are about to go.
    """

    def __init__(self, lasting: bool, released: Callable[[Collection[Key]], None] | None = None) -> None:
        self._lasting = lasting
        self._on_release = released
        self._expected: dict[Key, None] = {}
        self._arrived: dict[Key, tuple[Callable[[], None], Callable[[], None]]] = {}

    @property
    def waiting(self) -> int:
        """How many have arrived and wait."""
        return len(self._arrived)

    @property
    def missing(self) -> list[Key]:
        """Who is waited for."""
        return [key for key in self._expected if key not in self._arrived]

    def expect(self, key: Key) -> None:
        """Wait for one more."""
        self._expected[key] = None

    def arrive(self, key: Key, go: Callable[[], None], excused: Callable[[], None]) -> None:
        """Let ``key`` wait; ``go`` is called at the release, ``excused`` if it is excused before.

        One that nobody expects goes at once.
        """
        if key not in self._expected:
            go()
            return
        self._arrived[key] = go, excused
        self._release()

    def excuse(self, key: Key) -> None:
        """Do not wait for ``key`` any more; if it has arrived, it leaves."""
        if self._expected.pop(key, self) is self:
            return
        held = self._arrived.pop(key, None)
        if held is not None:
            held[1]()
        self._release()

    def _release(self) -> None:
        if not self._arrived or len(self._arrived) < len(self._expected):
            return
        released, self._arrived = self._arrived, {}
        if not self._lasting:
            self._expected = {}
        if self._on_release is not None:
            self._on_release(released.keys())
        for go, _ in released.values():
            go()
