"""An engine without a model: lengths in, lengths out, and durations for the virtual-time loop.

It is a full engine by the contract (sessions, misses, aborts, versions stamped at the step that produced the
token, KV rebuilt after an update); only the tokens and the time are made up. How many tokens an action
has is drawn from the seed, the trajectory and its length so far, so neither batching nor re-sending
changes it. Time is modelled as continuous batching: a decode step gives every running request a token and
takes ``step_seconds`` plus ``row_seconds`` a request; prompt tokens that enter with a step make it longer by
``prefill_token_seconds`` each.

Cost: steps are advanced many at a time, up to the next request's end, so the work is logarithmic in the
running requests for each request, and none for each token. A step that a command or a suspension cuts short is
finished afterwards; its tokens then carry the version of the weights at its end.

Who calls it: the engine shell, in virtual time and in tests.
"""

from __future__ import annotations

import heapq
from statistics import NormalDist

import msgspec
import numpy as np

from rollart.data_plane.generation.engine import EngineInfo, EngineStats
from rollart.data_plane.generation.requests import RequestCore
from rollart.data_plane.generation.sessions import Session
from rollart.data_plane.weights.store import Manifest
from rollart.types import EngineAddress, FinishReason, GenerationRequest, GenerationResult, LengthSpan, derive_seed

_SAME_TIME = 1e-6
"""Share of a step by which sums of floating-point times may miss its end."""


class EmulatedSpeed(msgspec.Struct, frozen=True):
    """How long an emulated engine takes, in seconds.

    Attributes:
        step_seconds: One decode step.
        row_seconds: More for each running request.
        prefill_token_seconds: More for each prompt token computed.
    """

    step_seconds: float = 0.02
    row_seconds: float = 0.0
    prefill_token_seconds: float = 1e-5


class EmulatedLengths(msgspec.Struct, frozen=True):
    """How many tokens an action has: log-normal, at least 1.

    Attributes:
        mean: Mean number of tokens before the request's limits cut it.
        spread: Standard deviation of the logarithm; 0 gives ``mean`` always, 1 a long tail.
    """

    mean: float = 32.0
    spread: float = 0.5

    def draw(self, seed: int, trajectory: object, length: int) -> int:
        """The number of tokens that the trajectory generates after ``length`` tokens of history."""
        if self.spread == 0:
            return max(1, round(self.mean))
        uniform = (derive_seed(seed, "length", str(trajectory), length) + 0.5) * 2.0**-63
        normal = _NORMAL.inv_cdf(min(uniform, 1 - 2.0**-53))
        return max(1, round(self.mean * float(np.exp(self.spread * normal - self.spread**2 / 2))))


_NORMAL = NormalDist()


class _Row:
    """A running request: it has generated ``steps - begin`` tokens and ends at step ``end``."""

    __slots__ = ("begin", "end", "reason", "session")

    def __init__(self, session: Session, begin: int, end: int, reason: FinishReason) -> None:
        self.session = session
        self.begin = begin
        self.end = end
        self.reason = reason


class EmulatedCore(RequestCore):
    """See the module docstring.

    Args:
        address: Identity of the engine, stamped on its answers.
        seed: Of the lengths.
        speed, lengths: The model.
        max_rows, max_sessions, max_context: As of any engine.
        version, checksum: Of the weights that it pretends to have.

    Raises:
        ValueError: a step takes no time, so that virtual time would stand still.
    """

    def __init__(
        self,
        address: EngineAddress,
        seed: int,
        speed: EmulatedSpeed,
        lengths: EmulatedLengths,
        *,
        max_rows: int = 64,
        max_sessions: int = 1024,
        max_context: int = 32768,
        version: int = 0,
        checksum: str = "",
    ) -> None:
        super().__init__(
            address, max_rows=max_rows, max_sessions=max_sessions, max_context=max_context, version=version
        )
        if speed.step_seconds <= 0:
            raise ValueError(f"step_seconds must be positive, not {speed.step_seconds}")
        self._seed = seed
        self._speed = speed
        self._lengths = lengths
        self._checksum = checksum
        self._rows: dict[int, _Row] = {}
        self._ends: list[tuple[int, int, _Row]] = []
        """Heap of (end, order of admission, row); rows that were withdrawn stay until popped."""
        self._admitted = 0
        self._steps = 0
        self._planned = 0
        """Steps under way, of ``_seconds`` each, of which ``_elapsed`` seconds have passed."""
        self._seconds = 0.0
        self._elapsed = 0.0
        self._rebuild = False
        self._prefill_tokens = self._cached_tokens = self._generated_tokens = 0
        self._busy_seconds = 0.0

    def info(self) -> EngineInfo:
        return EngineInfo(
            self._address, self._version, self._checksum, self._max_rows, self._max_sessions, self._max_context
        )

    def stats(self) -> EngineStats:
        return EngineStats(
            steps=self._steps,
            prefill_tokens=self._prefill_tokens,
            cached_tokens=self._cached_tokens,
            generated_tokens=self._generated_tokens,
            busy_seconds=self._busy_seconds,
            running=len(self._running),
            waiting=len(self._waiting),
            sessions=len(self._sessions),
        )

    def step(self) -> float:
        if not self._rows or not self._planned:
            self._elapsed = 0.0
            self._plan()
        return max(0.0, self._planned * self._seconds - self._elapsed)

    def settle(self, elapsed: float) -> list[GenerationResult]:
        if self._planned and elapsed > 0:
            self._busy_seconds += elapsed
            self._elapsed += elapsed
            done = min(self._planned, int(self._elapsed / self._seconds + _SAME_TIME))
            self._steps += done
            self._generated_tokens += done * len(self._rows)
            self._elapsed = max(0.0, self._elapsed - done * self._seconds)
            # cut short, the step under way is finished before others join
            under_way = done < self._planned and self._elapsed > _SAME_TIME * self._seconds
            self._planned = 1 if under_way else 0
            self._end_rows()
        return self._take_answers()

    def check(self, manifest: Manifest) -> None:
        """Any manifest will do."""

    def update(self, manifest: Manifest, flat: np.ndarray | None) -> None:
        self._renew(manifest.version)
        self._checksum = manifest.checksum
        self._planned = 0
        self._rebuild = True

    def _misfit(self, request: GenerationRequest) -> str:
        if not isinstance(request.new, LengthSpan):
            return "the emulated engine needs lengths, not token ids"
        return ""

    def _generated(self, session: Session) -> int:
        return self._steps - self._rows[session.slot].begin

    def _withdraw(self, session: Session) -> LengthSpan:
        generated = self._generated(session)
        session.kv_length = max(0, session.prompt_length + generated - 1)
        del self._rows[session.slot]
        return LengthSpan(generated)

    def _plan(self) -> None:
        """Admit requests, and plan the steps up to the next one's end."""
        prefill = 0
        if self._rebuild:
            prefill = sum(row.session.prompt_length + self._steps - row.begin for row in self._rows.values())
            self._rebuild = False
        for session, request in self._admit():
            prefill += session.prompt_length - session.cached_tokens
            self._cached_tokens += session.cached_tokens
            self._start(session, request)
        self._prefill_tokens += prefill
        speed = self._speed
        self._seconds = speed.step_seconds + speed.row_seconds * len(self._rows) + speed.prefill_token_seconds * prefill
        while self._ends and self._ends[0][2] is not self._rows.get(self._ends[0][2].session.slot):
            heapq.heappop(self._ends)
        if not self._ends:
            self._planned = 0
        else:
            self._planned = 1 if prefill else self._ends[0][0] - self._steps

    def _start(self, session: Session, request: GenerationRequest) -> None:
        wanted = self._lengths.draw(self._seed, session.trajectory, session.prompt_length)
        room = min(request.sampling.max_new_tokens, self._max_context - session.prompt_length)
        reason = FinishReason.STOP if wanted <= room else FinishReason.LENGTH
        row = _Row(session, self._steps, self._steps + min(wanted, room), reason)
        self._rows[session.slot] = row
        self._admitted += 1
        heapq.heappush(self._ends, (row.end, self._admitted, row))

    def _end_rows(self) -> None:
        """Answer the requests whose last step has been done."""
        while self._ends and self._ends[0][0] <= self._steps:
            row = heapq.heappop(self._ends)[2]
            session = row.session
            if self._rows.get(session.slot) is not row or session.request is None:
                continue
            self._finish(session, session.request, self._withdraw(session), row.reason)
