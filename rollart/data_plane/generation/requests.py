"""What every engine core does with requests, whatever computes the tokens: the engine contract's bookkeeping.

Idempotence by (trajectory, turn, attempt), prefix check and ``MISS``, supersession by a new attempt, the
waiting queue, answers. A concrete core adds the model: it admits requests into rows, generates, and ends
them with ``_finish``. Invariants:

* every request is answered exactly once; one that was answered is answered again, with the same answer, when it is
  submitted again while its session lives;
* a request leaves the queue when it has a row and its session a slot; one that cannot get a slot is
  overtaken by those that have one, so the slots that waiting requests hold always come free;
* after a turn the session's hash covers the prefix, the request's new tokens and its action, as three spans.

Who calls it: the concrete cores.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections import deque

from rollart.data_plane.generation.sessions import Session, SessionTable
from rollart.types import (
    EMPTY,
    EngineAddress,
    FinishReason,
    GenerationRequest,
    GenerationResult,
    Phase,
    ResultStatus,
    Span,
    TrajectoryId,
    VersionRun,
    rolling_hash,
)


class RequestCore(ABC):
    """See the module docstring.

    Args:
        address: Identity of the engine, stamped on its answers.
        max_rows: Requests that run together.
        max_sessions: Sessions kept.
        max_context: Longest history.
        version: Of the weights at the start.
    """

    splits_phases = False
    """Whether it takes requests for a prefill or a decode alone."""

    def __init__(
        self, address: EngineAddress, *, max_rows: int, max_sessions: int, max_context: int, version: int
    ) -> None:
        if max_sessions < max_rows:
            raise ValueError(
                f"engine.max_sessions ({max_sessions}) must be at least engine.max_rows ({max_rows}): "
                "every running request needs a session"
            )
        self._address = address
        self._max_rows = max_rows
        self._max_sessions = max_sessions
        self._max_context = max_context
        self._version = version
        self._sessions = SessionTable(max_sessions)
        self._waiting: deque[Session] = deque()
        self._running: dict[int, Session] = {}
        """Running requests' sessions by slot, in the order of admission."""
        self._answers: list[GenerationResult] = []

    @property
    def has_work(self) -> bool:
        return bool(self._waiting or self._running)

    def in_flight(self) -> int:
        return len(self._waiting) + len(self._running)

    def started(self) -> tuple[tuple[TrajectoryId, int], ...]:
        """As :meth:`EngineCore.started`."""
        started = []
        for session in self._running.values():
            if session.request is not None and session.request.turn == 0:
                runs = version_runs(session.marks, session.prompt_length + self._generated(session))
                if runs:
                    started.append((session.trajectory, runs[0].version))
        return tuple(started)

    def add(self, request: GenerationRequest) -> None:
        session = self._sessions.get(request.trajectory)
        if session is not None:
            answer = session.answers.get((request.turn, request.attempt))
            if answer is not None:
                self._answers.append(answer)
                return
            current = session.request
            if current is not None:
                if (current.turn, current.attempt) == (request.turn, request.attempt):
                    return
                self._cancel(session, current)
        if error := self._refusal(request):
            self._answers.append(_without_tokens(request, self._address, ResultStatus.REJECTED, error))
        elif not self._enqueue(request):
            self._answers.append(_without_tokens(request, self._address, ResultStatus.MISS))

    def abort(self, trajectory: TrajectoryId) -> None:
        session = self._sessions.get(trajectory)
        if session is not None:
            if session.request is not None:
                self._cancel(session, session.request)
            self._sessions.drop(session)

    release = abort

    @abstractmethod
    def _misfit(self, request: GenerationRequest) -> str:
        """Why this engine can never run the request, beyond its length; empty if it can."""

    @abstractmethod
    def _generated(self, session: Session) -> int:
        """Tokens that the running request has generated so far."""

    @abstractmethod
    def _withdraw(self, session: Session) -> Span:
        """Stop computing a running request; returns the tokens so far."""

    def _take_answers(self) -> list[GenerationResult]:
        answers, self._answers = self._answers, []
        return answers

    def _refusal(self, request: GenerationRequest) -> str:
        total, sampling = request.prefix_length + len(request.new), request.sampling
        where = f"{request.trajectory}, turn {request.turn}"
        if total == 0:
            return f"{where}: nothing to continue from, the history is empty"
        if total >= self._max_context:
            return (
                f"{where}: the history of {total} tokens leaves no room in the engine's context of "
                f"{self._max_context}: lower the domain's context limit or raise the model's"
            )
        if sampling.max_new_tokens < 1 or sampling.temperature < 0 or not 0 < sampling.top_p <= 1 or sampling.top_k < 0:
            return f"{where}: impossible sampling parameters {sampling}"
        if request.phase is not Phase.WHOLE and not self.splits_phases:
            return f"{where}: this kind of engine cannot split prefill and decode: leave out placement.prefill"
        misfit = self._misfit(request)
        return f"{where}: {misfit}" if misfit else ""

    def _enqueue(self, request: GenerationRequest) -> bool:
        """Queue the request; False if the session does not hold its prefix."""
        session = self._sessions.get(request.trajectory)
        prefix = (request.prefix_length, request.prefix_hash)
        if request.prefix_length == 0:
            if session is not None:
                self._sessions.drop(session)
            session = self._sessions.open(request.trajectory)
        elif session is None or prefix not in ((session.length, session.hash), session.turn_start):
            return False
        session.length, session.hash = session.turn_start = prefix
        session.kv_length = min(session.kv_length, request.prefix_length)
        session.request = request
        self._sessions.use(session)
        self._waiting.append(session)
        return True

    def _fits(self, tokens: int) -> bool:
        """Whether a request with a prompt of ``tokens`` can be admitted now; if not, those behind it wait too."""
        return True

    def _admit(self, most: int = sys.maxsize) -> list[tuple[Session, GenerationRequest]]:
        """Move waiting requests to free rows, first come first served, at most ``most``; those moved."""
        admitted: list[tuple[Session, GenerationRequest]] = []
        delayed: list[Session] = []
        while self._waiting and len(self._running) < self._max_rows and len(admitted) < most:
            session = self._waiting[0]
            request = session.request
            assert request is not None
            if not self._fits(request.prefix_length + len(request.new)):
                break
            self._waiting.popleft()
            if not self._sessions.give_slot(session):
                delayed.append(session)
                continue
            session.prompt_length = request.prefix_length + len(request.new)
            # the last prompt token must run again, for what follows it
            session.cached_tokens = min(session.kv_length, session.prompt_length - 1)
            session.marks = [(session.prompt_length, self._version)]
            self._running[session.slot] = session
            admitted.append((session, request))
        self._waiting.extendleft(reversed(delayed))
        return admitted

    def _renew(self, version: int) -> None:
        """The weights have changed: all KV is out of date, and running actions go on under the new version."""
        self._version = version
        self._sessions.forget_kv()
        for session in self._running.values():
            session.marks.append((session.prompt_length + self._generated(session), version))

    def _cancel(self, session: Session, request: GenerationRequest) -> None:
        """Answer a request in flight with the tokens so far."""
        if session.slot in self._running:
            self._finish(session, request, self._withdraw(session), FinishReason.ABORT)
        else:
            self._waiting.remove(session)
            session.request = None
            self._sessions.rest(session)
            answer = _without_tokens(request, self._address, ResultStatus.DONE, finish_reason=FinishReason.ABORT)
            self._answers.append(answer)

    def _finish(self, session: Session, request: GenerationRequest, action: Span, reason: FinishReason) -> None:
        """Answer a running request with its action. ``session.kv_length`` must be up to date."""
        del self._running[session.slot]
        end = session.prompt_length + len(action)
        answer = GenerationResult(
            request.trajectory,
            request.turn,
            request.attempt,
            self._address,
            ResultStatus.DONE,
            action,
            version_runs(session.marks, end),
            reason,
            session.cached_tokens,
            kv_version=self._version if request.phase is Phase.PREFILL else -1,
        )
        session.request = None
        session.length = end
        session.hash = rolling_hash(rolling_hash(request.prefix_hash, request.new), action)
        session.answers[request.turn, request.attempt] = answer
        self._answers.append(answer)
        self._sessions.rest(session)

    def _reject_running(self, session: Session, request: GenerationRequest, error: str) -> None:
        """Refuse a request that turned out to be impossible while it ran, and drop its session."""
        del self._running[session.slot]
        self._sessions.drop(session)
        error = f"{request.trajectory}, turn {request.turn}: {error}"
        self._answers.append(_without_tokens(request, self._address, ResultStatus.REJECTED, error))


def version_runs(marks: list[tuple[int, int]], end: int) -> tuple[VersionRun, ...]:
    """Runs of equal version from the (length, version) at which each took over, up to length ``end``."""
    ends = [position for position, _ in marks[1:]] + [end]
    runs = (VersionRun(version, stop - start) for (start, version), stop in zip(marks, ends, strict=True))
    return tuple(run for run in runs if run.length)


def _without_tokens(
    request: GenerationRequest,
    engine: EngineAddress,
    status: ResultStatus,
    error: str = "",
    *,
    finish_reason: FinishReason = FinishReason.STOP,
) -> GenerationResult:
    """An answer without tokens."""
    return GenerationResult(
        request.trajectory,
        request.turn,
        request.attempt,
        engine,
        status,
        EMPTY,
        finish_reason=finish_reason,
        error=error,
    )
