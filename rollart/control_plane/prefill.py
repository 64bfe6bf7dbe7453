"""Prefill on one engine, decode on another: the two phases of a request.

Engines of the pools in ``placement.prefill`` compute prompts only. A request goes there first; the answer, without
tokens, says under which version of the weights the prompt's keys and values were computed. Then the same request goes
to an engine that decodes, which fetches them. A prefill engine keeps a trajectory's prompt for its next turn, but has
not seen the action that was decoded elsewhere: the next prompt for it is that action and the new observation.

Keys and values belong to a version: a decode engine that has swapped its weights meanwhile computes the prompt itself.
A trajectory whose history here does not match the request (it was aborted, or re-sent in part) is decoded without a
prefill phase; nothing is ever wrong, only slower.

Pure bookkeeping: called by the LLMProxy, which sends the requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, TypeVar

import msgspec

from rollart.types import (
    EMPTY,
    HASH_START,
    GenerationRequest,
    GenerationResult,
    Phase,
    Span,
    TrajectoryId,
    join,
    rolling_hash,
)

EngineT = TypeVar("EngineT")


class _Held:
    """What a prefill engine holds of a trajectory, and the action that has been decoded on top of it."""

    __slots__ = ("action", "hash", "index", "length", "sent")

    def __init__(self, index: int) -> None:
        self.index = index
        self.length = 0
        self.hash = HASH_START
        self.action: Span = EMPTY
        self.sent: GenerationRequest | None = None


class PrefillPhases(Generic[EngineT]):
    """See the module docstring.

    Args:
        engines: Those that compute prompts.
    """

    def __init__(self, engines: Sequence[EngineT]) -> None:
        self._engines = engines
        self._held: dict[TrajectoryId, _Held] = {}
        self._trajectories = [0] * len(engines)
        """Of each engine; prompts are short, so requests in flight say little of its load to come."""

    def first(self, request: GenerationRequest) -> tuple[EngineT, GenerationRequest] | None:
        """Where the request's prompt is computed, and the request for it; ``None`` if its history is not there."""
        held = self._held.get(request.trajectory)
        if request.prefix_length == 0:
            held = held or self._placed()
            held.length, held.hash, new = 0, HASH_START, request.new
            self._held[request.trajectory] = held
        elif held is None or held.length + len(held.action) != request.prefix_length:
            return None
        else:
            new = join([held.action, request.new])
        held.sent = msgspec.structs.replace(
            request, prefix_length=held.length, prefix_hash=held.hash, new=new, phase=Phase.PREFILL
        )
        return self._engines[held.index], held.sent

    def second(self, request: GenerationRequest, prefilled: GenerationResult) -> GenerationRequest | None:
        """The request that decodes, once the prompt has been computed; ``None`` if it was aborted meanwhile."""
        held = self._held.get(request.trajectory)
        sent = None if held is None else held.sent
        if held is None or sent is None:
            return None
        held.length = sent.prefix_length + len(sent.new)
        held.hash = rolling_hash(rolling_hash(sent.prefix_hash, sent.new), prefilled.action)
        held.action = EMPTY
        return msgspec.structs.replace(request, phase=Phase.DECODE, kv_version=prefilled.kv_version)

    def decoded(self, result: GenerationResult) -> None:
        """A turn is over: its action comes before the next observation."""
        held = self._held.get(result.trajectory)
        if held is not None:
            held.action = result.action

    def forget(self, trajectory: TrajectoryId) -> EngineT | None:
        """The trajectory has ended; the prefill engine that holds some of it."""
        held = self._held.pop(trajectory, None)
        if held is None:
            return None
        self._trajectories[held.index] -= 1
        return self._engines[held.index]

    def _placed(self) -> _Held:
        """A trajectory on the engine with the fewest."""
        index = self._trajectories.index(min(self._trajectories))
        self._trajectories[index] += 1
        return _Held(index)
