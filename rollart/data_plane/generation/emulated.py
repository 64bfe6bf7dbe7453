"""An engine without a model: lengths in, lengths out, and durations for the virtual-time loop.

It is a full engine by the contract (sessions, misses, aborts, versions stamped at the step that produced the
token, KV rebuilt after an update); only the tokens and the time are made up. How many tokens an action
has is drawn from the seed, the trajectory and its length so far, so neither batching nor re-sending
changes it. Time is that of continuous batching with chunked prefill, under a
:class:`~rollart.data_plane.generation.emulated_models.SpeedModel`: every step gives each request whose prompt has been
computed a token, and computes prompts beside, first come first served, up to the step's token limit.

KV capacity. A running request holds its prompt and the tokens so far. If they no longer fit, the youngest running
request gives way: it loses its KV, goes before all that wait, and is computed again up to where it was, as in
vLLM's preemption by recomputation. What sessions keep between turns goes first, least recently used first.
Invariants:

* running requests hold at most ``kv_tokens``, and with what is kept between turns no more either;
* preemption changes when an action ends, never its length.

Cost: steps are advanced many at a time, up to the next request's end, in closed form, so the work is logarithmic
in the running requests for each request, and none for each token. A step that a command or a suspension cuts
short is finished afterwards; its tokens then carry the version of the weights at its end.

Who calls it: the engine shell, in virtual time and in tests.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from typing import NamedTuple

import numpy as np

from rollart.data_plane.generation.emulated_kv import KvSessions
from rollart.data_plane.generation.emulated_models import EmulatedLengths, EmulatedSpeed, LengthSource, SpeedModel
from rollart.data_plane.generation.engine import EngineInfo, EngineStats
from rollart.data_plane.generation.requests import RequestCore
from rollart.data_plane.generation.sessions import Session
from rollart.data_plane.weights.store import Manifest
from rollart.types import EngineAddress, FinishReason, GenerationRequest, GenerationResult, LengthSpan, Phase

__all__ = ["EmulatedCore", "EmulatedLengths", "EmulatedSpeed"]

_SAME_TIME = 1e-6
"""Share of a step by which sums of floating-point times may miss its end."""

WATERMARK = 0.01
"""Share of the KV that stays free when a request is admitted, so that it is not preempted at once (as in vLLM)."""

_UNLIMITED = 1 << 62

_NEVER = -1
"""End of a request that does not decode."""


class _Row:
    """A running request that ends with its token number ``target``.

    While it decodes, it has generated ``steps - begin`` tokens and ends at step ``end``; while ``pending`` tokens
    of its history are to be computed, it has generated ``done``.
    """

    __slots__ = ("begin", "done", "end", "pending", "reason", "session", "target")

    def __init__(self, session: Session, target: int, reason: FinishReason) -> None:
        self.session = session
        self.target = target
        self.reason = reason
        self.pending = session.prompt_length - session.cached_tokens
        self.done = 0
        self.begin = 0
        self.end = _NEVER

    @property
    def length(self) -> int:
        """Tokens of the history, while some of it is pending."""
        return self.session.prompt_length + self.done

    def restart(self, generated: int) -> None:
        """All of its history must be computed again."""
        self.done = generated
        self.pending = self.length
        self.end = _NEVER


class _Stretch(NamedTuple):
    """Steps planned: ``steps`` of them, the first of ``first`` seconds and each ``growth`` longer than the one before.

    ``chunks`` are the prompts that a single step computes, with the tokens of each.
    """

    steps: int
    first: float
    growth: float
    seconds: float
    chunks: tuple[tuple[_Row, int], ...] = ()


class EmulatedCore(RequestCore):
    """See the module docstring.

    Args:
        address: Identity of the engine, stamped on its answers.
        seed: Of the lengths.
        speed, lengths: The model.
        max_rows, max_sessions, max_context: As of any engine.
        version, checksum: Of the weights that it pretends to have.

    Raises:
        ValueError: the KV has no room for one history of ``max_context`` tokens.
    """

    def __init__(
        self,
        address: EngineAddress,
        seed: int,
        speed: SpeedModel,
        lengths: LengthSource,
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
        capacity = speed.kv_tokens
        if capacity is not None and capacity < max_context:
            raise ValueError(
                f"the engine's KV cache holds {capacity} tokens, less than one history of {max_context}: lower the "
                "domains' max_context, or give the engine more devices (engine.devices)"
            )
        self._capacity = _UNLIMITED if capacity is None else capacity
        self._watermark = 0 if capacity is None else int(WATERMARK * capacity)
        self._step_tokens = speed.step_tokens or _UNLIMITED
        self._seed = seed
        self._speed = speed
        self._lengths = lengths
        self._checksum = checksum
        self._kv = self._sessions = KvSessions(max_sessions)
        self._rows: dict[int, _Row] = {}
        """Requests that hold KV, by slot, in the order of admission; ``_preempted`` are running ones without."""
        self._pending: dict[int, _Row] = {}
        """Those of ``_rows`` of whose history something is to be computed, first come first."""
        self._preempted: deque[_Row] = deque()
        self._held = 0
        """Tokens of the requests in ``_rows``; the step under way, after which others join, adds ``_growing``."""
        self._growing = 0
        self._ends: list[tuple[int, int, _Row]] = []
        """Heap of (end, order, row) of those that decode; entries with another end than their row's are void."""
        self._pushed = 0
        self._steps = 0
        self._plan: list[_Stretch] = []
        """Steps under way, one stretch after the other, of which ``_elapsed`` seconds have passed."""
        self._elapsed = 0.0
        self._prefill_tokens = self._cached_tokens = self._generated_tokens = self._preemptions = 0
        self._busy_seconds = 0.0

    splits_phases = True

    @property
    def kv_capacity(self) -> int:
        """Tokens whose KV the engine can hold."""
        return self._capacity

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
            running=len(self._rows),
            waiting=len(self._waiting) + len(self._preempted),
            sessions=len(self._sessions),
            preemptions=self._preemptions,
            kv_tokens=self._held + self._kv.kept,
        )

    def step(self) -> float:
        plan = self._plan
        if not plan:
            self._elapsed = 0.0
            self._make_room()
            self._compose(0)
        elif len(plan) == 1 and plan[0].steps == 1 and not plan[0].chunks:
            self._compose(1)
        return max(0.0, sum([stretch.seconds for stretch in plan]) - self._elapsed)

    def settle(self, elapsed: float) -> list[GenerationResult]:
        if elapsed > 0 and self._plan:
            self._busy_seconds += elapsed
            self._elapsed += elapsed
            self._pass()
        return self._take_answers()

    def check(self, manifest: Manifest) -> None:
        """Any manifest will do."""

    def update(self, manifest: Manifest, flat: np.ndarray | None) -> None:
        self._renew(manifest.version)
        self._checksum = manifest.checksum
        self._plan.clear()
        for row in self._rows.values():
            row.restart(self._tokens(row))
        self._pending = dict(self._rows)
        self._ends.clear()

    def _misfit(self, request: GenerationRequest) -> str:
        if not isinstance(request.new, LengthSpan):
            return "the emulated engine needs lengths, not token ids"
        return ""

    def _tokens(self, row: _Row) -> int:
        return row.done if row.end == _NEVER else self._steps - row.begin

    def _generated(self, session: Session) -> int:
        return self._tokens(self._row(session))

    def _row(self, session: Session) -> _Row:
        row = self._rows.get(session.slot)
        return row or next(each for each in self._preempted if each.session is session)

    def _withdraw(self, session: Session) -> LengthSpan:
        row = self._row(session)
        generated = self._tokens(row)
        if session.slot in self._rows:
            del self._rows[session.slot]
            self._pending.pop(session.slot, None)
            length = session.prompt_length + generated
            self._held -= length
            session.kv_length = length - (row.pending or 1)
        else:
            self._preempted.remove(row)
            session.kv_length = 0
        row.end = _NEVER
        return LengthSpan(generated)

    def _pass(self) -> None:
        """Do the steps of the plan for which time has passed, the one under way not among them."""
        plan = self._plan
        while plan:
            stretch = plan[0]
            if self._elapsed < stretch.seconds - _SAME_TIME * stretch.first:
                self._cut()
                return
            del plan[0]
            self._elapsed = max(0.0, self._elapsed - stretch.seconds)
            self._advance(stretch.steps, stretch.chunks)

    def _cut(self) -> None:
        """Something has happened before the plan's end: only the step under way stays planned."""
        stretch = self._plan[0]
        first, growth = stretch.first, stretch.growth
        done = steps_within(first, growth, self._elapsed)
        if done:
            self._elapsed = max(0.0, self._elapsed - seconds_of(first, growth, done))
            self._advance(done, ())
        step = first + growth * done
        under_way = self._elapsed > _SAME_TIME * step
        self._plan[:] = [_Stretch(1, step, growth, step, stretch.chunks)] if under_way else []

    def _advance(self, steps: int, chunks: tuple[tuple[_Row, int], ...]) -> None:
        """``steps`` steps have been done."""
        self._steps += steps
        tokens = steps * (len(self._rows) - len(self._pending))
        for row, computed in chunks:
            slot = row.session.slot
            if self._pending.get(slot) is not row:
                continue  # withdrawn while the step was under way
            self._prefill_tokens += computed
            row.pending -= computed
            if not row.pending:
                del self._pending[slot]
                row.begin = self._steps - 1 - row.done
                row.end = row.begin + row.target
                self._pushed += 1
                heapq.heappush(self._ends, (row.end, self._pushed, row))
                tokens += 1
        self._held += tokens
        self._generated_tokens += tokens
        self._end_rows()
        if self._held + self._kv.kept > self._capacity:
            self._kv.limit(self._capacity - self._held)

    def _end_rows(self) -> None:
        """Answer the requests whose last step has been done."""
        ends = self._ends
        while ends and (ends[0][0] <= self._steps or ends[0][0] != ends[0][2].end):
            end, _, row = heapq.heappop(ends)
            request = row.session.request
            if end == row.end and request is not None:
                action = self._withdraw(row.session)
                if request.phase is Phase.PREFILL:
                    # what the last step of a prompt samples is sampled again by the engine that decodes
                    action = LengthSpan(0)
                    self._generated_tokens -= 1
                self._finish(row.session, request, action, row.reason)

    def _make_room(self) -> None:
        """Preempt the youngest requests until a step fits."""
        rows = self._rows
        while self._held + len(rows) > self._capacity and len(rows) > 1:
            slot, row = rows.popitem()
            self._pending.pop(slot, None)
            generated = self._tokens(row)
            self._held -= row.session.prompt_length + generated
            row.restart(generated)
            self._preempted.appendleft(row)
            self._preemptions += 1

    def _fits(self, tokens: int) -> bool:
        return not self._preempted and self._has_room(tokens)

    def _has_room(self, tokens: int) -> bool:
        """Whether a history of ``tokens`` can join."""
        # a step of all rows must fit too; one request alone always does, since the KV holds a whole context
        need = self._held + self._growing + tokens + len(self._rows) + 1 + self._watermark
        return need <= self._capacity or not self._rows

    def _admit_all(self) -> None:
        """Let requests in as long as they fit, those first that had to give way."""
        while self._preempted and self._has_room(self._preempted[0].length):
            self._enter(self._preempted.popleft())
        while admitted := self._admit(1):
            session, request = admitted[0]
            if self._fetched(session, request):
                session.cached_tokens = session.prompt_length - 1
            self._cached_tokens += session.cached_tokens
            self._kv.take(session)
            if request.phase is Phase.PREFILL:
                self._enter(_Row(session, 1, FinishReason.STOP))
                continue
            wanted = self._lengths.draw(self._seed, session.trajectory, session.prompt_length)
            room = min(request.sampling.max_new_tokens, self._max_context - session.prompt_length)
            reason = FinishReason.STOP if wanted <= room else FinishReason.LENGTH
            self._enter(_Row(session, min(wanted, room), reason))

    def _fetched(self, session: Session, request: GenerationRequest) -> bool:
        """Whether another engine's keys and values of the prompt can be used, on top of those that are here."""
        return (
            request.phase is Phase.DECODE
            and request.kv_version == self._version
            and session.kv_length >= request.prefix_length - 1
        )

    def _enter(self, row: _Row) -> None:
        self._rows[row.session.slot] = self._pending[row.session.slot] = row
        self._held += row.length
        if self._held + self._kv.kept > self._capacity:
            self._kv.limit(self._capacity - self._held)

    def _compose(self, ahead: int) -> None:
        """Plan the steps up to the next request's end, after ``ahead`` decode steps that are planned already."""
        decoding = len(self._rows) - len(self._pending)
        self._growing = ahead * decoding
        held, steps = self._held + self._growing, self._steps + ahead
        if ahead and (self._next_end() <= steps or held + len(self._rows) > self._capacity):
            return
        if self._waiting or self._preempted:
            entered = self._held
            self._admit_all()
            held += self._held - entered
        end = self._next_end()
        if self._pending:
            chunks = self._chunks(decoding)
            self._plan.append(self._mixed(decoding, held, chunks))
            if sum(tokens for _, tokens in chunks) < sum(row.pending for row in self._pending.values()):
                return
            held += len(self._rows)
            steps += 1
            end = min(end, min(steps - 1 - row.done + row.target for row, _ in chunks))
        rows = len(self._rows)
        if rows and end > steps:
            count = min(end - steps, (self._capacity - held) // rows)
            if count > 0:
                base, each = self._speed.decode(rows)
                first, growth = base + each * held, each * rows
                self._plan.append(_Stretch(count, first, growth, seconds_of(first, growth, count)))

    def _next_end(self) -> int:
        """Step at which the first of the decoding requests ends."""
        ends = self._ends
        while ends and ends[0][0] != ends[0][2].end:
            heapq.heappop(ends)
        return ends[0][0] if ends else _UNLIMITED

    def _chunks(self, decoding: int) -> tuple[tuple[_Row, int], ...]:
        """The prompts that the next step computes, and how many tokens of each."""
        budget = max(1, self._step_tokens - decoding)
        chunks: list[tuple[_Row, int]] = []
        for row in self._pending.values():
            if budget <= 0:
                break
            tokens = min(row.pending, budget)
            chunks.append((row, tokens))
            budget -= tokens
        return tuple(chunks)

    def _mixed(self, decoding: int, held: int, chunks: tuple[tuple[_Row, int], ...]) -> _Stretch:
        """The step that computes ``chunks`` beside the requests that decode, of which ``held`` tokens are held."""
        context = held - sum([row.length for row in self._pending.values()])
        computed = attended = 0
        for row, tokens in chunks:
            before = row.length - row.pending
            context += before + tokens
            computed += tokens
            attended += tokens * before + tokens * (tokens + 1) // 2
        seconds = self._speed.mixed(decoding, len(chunks), context, computed, attended)
        return _Stretch(1, seconds, 0.0, seconds, chunks)


def seconds_of(first: float, growth: float, steps: int) -> float:
    """Seconds of ``steps`` steps, the first of ``first`` seconds and each ``growth`` longer than the one before."""
    return steps * (first + growth * (steps - 1) / 2)


def steps_within(first: float, growth: float, seconds: float) -> int:
    """How many of these steps end within ``seconds``: :func:`seconds_of` the other way round."""
    half = first - growth / 2
    return int(2 * seconds / (half + math.sqrt(half * half + 2 * growth * seconds)) + _SAME_TIME)
