"""Rendering for emulated environments and engines: lengths instead of tokens.

Used by domains whose environment gives :class:`~rollart.types.LengthSpan` observations; actions are
length spans from an emulated engine and have no text.
"""

from __future__ import annotations

from rollart.data_plane.environment.env import Observation
from rollart.data_plane.rendering.renderer import RenderingError
from rollart.types import LengthSpan, Span


class LengthRenderer:
    """Adds up lengths.

    Args:
        system: Tokens before the first observation.
        opening: Tokens around each observation (the frame of a message and the opening of the action).
    """

    stop_token_ids: tuple[int, ...] = ()

    def __init__(self, system: int = 0, opening: int = 0) -> None:
        self._system = system
        self._opening = opening

    def begin(self, observation: Observation) -> Span:
        return LengthSpan(self._system + self._opening + _length(observation))

    def observe(self, observation: Observation, *, stopped: bool) -> Span:
        return LengthSpan(self._opening + _length(observation) + (0 if stopped else 1))

    def parse(self, action: Span) -> str:
        return ""

    def decode(self, tokens: Span) -> str:
        return f"<{len(tokens)} tokens>"


def _length(observation: Observation) -> int:
    if isinstance(observation, LengthSpan):
        return observation.length
    raise RenderingError(f"an emulated domain renders lengths, not {observation!r:.80}: set its env to 'emulated'")
