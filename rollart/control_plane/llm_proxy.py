"""The LLMProxy: the only way to the engines.

It routes each request by domain to the engines of the mapped hardware class, sticks to the engine that
holds a trajectory's session, counts what is where, and closes its gate between ``suspend`` and
``resume``: requests that arrive meanwhile wait, those in flight are kept by their engines. Evaluation may
close the gate for training requests alone.

Invariants: at most one request of a trajectory is anywhere (gate or engine); each is answered exactly
once, by its engine or, past ``engine.answer_timeout``, here; an answer of an old incarnation or of a request
that is not in flight is dropped and counted.

With pools in ``placement.prefill`` a request has two phases (:mod:`rollart.control_plane.prefill`), one after the
other on two engines, and is still answered once.

Who calls it: the RolloutScheduler (submit, abort, release) and the TrainingLoop (suspend, prefetch,
update, resume). Messages to an engine are batched by an Outbox, answers come by long poll.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

from rollart.control_plane.outbox import Outbox
from rollart.control_plane.prefill import PrefillPhases
from rollart.control_plane.supervision import Loop
from rollart.control_plane.waits import Waits
from rollart.data_plane.generation.engine import EngineInfo, EngineStats, UpdateReport
from rollart.data_plane.routing import Candidate, class_for, route
from rollart.data_plane.weights.store import Manifest
from rollart.events import EngineUpdated, EventSink, Fallback, PoolBusy, TurnFinished
from rollart.runtime.runtime import WorkerHandle
from rollart.types import (
    EngineAddress,
    FinishReason,
    GenerationRequest,
    GenerationResult,
    Phase,
    Purpose,
    ResultStatus,
    TrajectoryId,
)

POLL_SECONDS = 30.0
"""A long poll returns after this long without an answer; only the number of idle calls depends on it."""

CALL_SECONDS = 60.0
"""Deadline of a call that only queues messages; an engine that is stuck longer is reported as such."""

UPDATE_SECONDS = 600.0
"""Deadline of prefetch, suspend and swap: a large model's weights move in it."""


class EngineClient:
    """The proxy's view of one engine."""

    def __init__(self, handle: WorkerHandle, info: EngineInfo) -> None:
        self.handle = handle
        self.info = info
        self.outbox = Outbox(3, self._post)
        self.in_flight = 0

    @property
    def address(self) -> EngineAddress:
        return self.info.address

    async def _post(
        self, requests: list[GenerationRequest], aborts: list[TrajectoryId], releases: list[TrajectoryId]
    ) -> None:
        await self.handle.call("post", requests, aborts, releases, timeout=CALL_SECONDS)


class _InFlight:
    """A request at an engine."""

    __slots__ = ("engine", "phase", "reply", "request", "since")

    def __init__(
        self, request: GenerationRequest, reply: Reply, engine: EngineClient, phase: Phase, since: float
    ) -> None:
        self.request = request
        self.phase = phase
        self.reply = reply
        self.engine = engine
        self.since = since


Reply = Callable[[GenerationResult], None]


class LLMProxy:
    """See the module docstring.

    Args:
        engines: The engines, all holding the same version.
        affinity: Hardware class by domain, ``default`` for the others.
        sink: Where events go.
        waits: Register of waits and progress.
        on_first_token: Called with (trajectory, version) when a start version becomes known.
        answer_seconds: How long an engine may work for a request (``engine.answer_timeout``).
        log_turns: Emit one record for each turn.
        prefill_pools: Pools whose engines compute prompts only.
    """

    def __init__(
        self,
        engines: Sequence[EngineClient],
        affinity: Mapping[str, str],
        sink: EventSink,
        waits: Waits,
        on_first_token: Callable[[TrajectoryId, int], None],
        answer_seconds: float,
        log_turns: bool = False,
        prefill_pools: Collection[str] = (),
    ) -> None:
        self._engines = list(engines)
        computing = [engine for engine in self._engines if engine.handle.info.pool in prefill_pools]
        self._prefill = PrefillPhases(computing) if computing else None
        self._decoding = [engine for engine in self._engines if engine not in computing]
        self._version = min(engine.info.version for engine in self._engines)
        self._affinity = dict(affinity)
        self._sink = sink
        self._waits = waits
        self._on_first_token = on_first_token
        self._answer_seconds = answer_seconds
        self._log_turns = log_turns
        self._gate: dict[TrajectoryId, tuple[GenerationRequest, Reply]] = {}
        self._in_flight: dict[TrajectoryId, _InFlight] = {}
        self._sticky: dict[TrajectoryId, EngineClient] = {}
        self._fallbacks: dict[str, str] = {}
        """Class that each domain was sent to instead of the wanted one: recorded once until it changes."""
        self._suspended = False
        self._closed_for: Purpose | None = None
        self._busy: dict[int, tuple[float, float]] = {}
        self.generated_tokens = 0
        self.dropped_results = 0

    @property
    def version(self) -> int:
        """v: the oldest version among the engines."""
        return self._version

    @property
    def waiting(self) -> int:
        """Requests at the gate."""
        return len(self._gate)

    @property
    def running(self) -> int:
        """Requests at the engines."""
        return len(self._in_flight)

    @property
    def sessions(self) -> int:
        """Trajectories whose session an engine keeps."""
        return len(self._sticky)

    def loops(self) -> list[Loop]:
        """The background loops to run."""
        loops: list[Loop] = [("answer deadline", self._give_up_late)]
        for engine in self._engines:
            name = f"engine-{engine.address.engine}"
            loops.append((f"{name}-outbox", engine.outbox.run))
            loops.append((f"{name}-results", partial(self._collect, engine)))
        return loops

    def submit(self, request: GenerationRequest, reply: Reply) -> None:
        """Route a request, or hold it while the gate is closed; ``reply`` is called with its answer."""
        if self._suspended or request.trajectory.purpose is self._closed_for:
            self._gate[request.trajectory] = (request, reply)
        else:
            self._dispatch(request, reply)

    def abort(self, trajectory: TrajectoryId) -> None:
        """Cancel a trajectory's request, which is answered with the tokens so far, and forget its session."""
        held = self._gate.pop(trajectory, None)
        if held is not None:
            request, reply = held
            reply(aborted(request))
        pending = self._in_flight.get(trajectory)
        for engine in self._forget(trajectory):
            engine.outbox.put(1 if pending is not None and pending.engine is engine else 2, trajectory)

    def release(self, trajectory: TrajectoryId) -> None:
        """A trajectory has ended: its engine may forget the session."""
        for engine in self._forget(trajectory):
            engine.outbox.put(2, trajectory, urgent=False)

    def close_for(self, purpose: Purpose | None) -> None:
        """Hold new requests of one purpose at the gate (``None`` opens it again)."""
        self._closed_for = purpose
        self._open_gate()

    async def suspend(self) -> None:
        """Close the gate and stop every engine between two steps."""
        self._suspended = True
        await self._all("suspend")

    async def prefetch(self, manifest: Manifest) -> None:
        """Bring a version to every engine's host while they generate."""
        await self._all("prefetch", manifest)

    async def update(self, manifest: Manifest) -> None:
        """Swap every engine to a version and check that each now holds the trainer's weights.

        Raises:
            RuntimeError: an engine's checksum differs from the manifest's.
        """
        reports: list[UpdateReport] = await self._all("update", manifest.version)
        for engine, report in zip(self._engines, reports, strict=True):
            if report.checksum != manifest.checksum:
                raise RuntimeError(
                    f"engine {engine.address.engine} holds weights with checksum {report.checksum} after the update "
                    f"to version {manifest.version}, the trainer's is {manifest.checksum}"
                )
            engine.info = _replace_version(engine.info, report)
            self._sink.emit(
                EngineUpdated(engine.address, report.version, report.seconds, report.checksum, report.in_flight)
            )
            for trajectory, version in report.started:
                self._on_first_token(trajectory, version)
        self._version = min(engine.info.version for engine in self._engines)
        self._waits.moved()

    async def resume(self) -> None:
        """Let the engines go on and open the gate."""
        await self._all("resume")
        self._suspended = False
        self._open_gate()

    async def report_busy(self) -> None:
        """Emit each engine's busy time since the last call."""
        now = asyncio.get_running_loop().time()
        stats: list[EngineStats] = await self._all("stats")
        for engine, stat in zip(self._engines, stats, strict=True):
            since, before = self._busy.get(engine.address.engine, (now, stat.busy_seconds))
            self._busy[engine.address.engine] = (now, stat.busy_seconds)
            if now > since:
                info = engine.handle.info
                busy = stat.busy_seconds - before
                self._sink.emit(
                    PoolBusy(info.worker, info.role, info.pool, since, now, busy, stat.running, stat.waiting)
                )

    def describe(self) -> str:
        """The proxy's state in one line, for the watchdog."""
        engines = ", ".join(
            f"engine {engine.address.engine} (v{engine.info.version}): {engine.in_flight} in flight"
            for engine in self._engines
        )
        gate = "suspended" if self._suspended else f"closed for {self._closed_for}" if self._closed_for else "open"
        dropped = f"; {self.dropped_results} answers dropped" if self.dropped_results else ""
        return f"LLMProxy: gate {gate}, {len(self._gate)} requests at it; {engines}{dropped}"

    def _open_gate(self) -> None:
        if self._suspended:
            return
        held, self._gate = self._gate, {}
        for request, reply in held.values():
            self.submit(request, reply)

    def _forget(self, trajectory: TrajectoryId) -> list[EngineClient]:
        """The engines that hold some of the trajectory, which is theirs no more."""
        engine = self._sticky.pop(trajectory, None)
        engines = [] if engine is None else [engine]
        if self._prefill is not None and (computing := self._prefill.forget(trajectory)) is not None:
            engines.append(computing)
        return engines

    def _dispatch(self, request: GenerationRequest, reply: Reply) -> None:
        now = asyncio.get_running_loop().time()
        if self._prefill is not None and (first := self._prefill.first(request)) is not None:
            engine, sent = first
        else:
            engine, sent = self._engine_for(request.trajectory), request
        self._send(_InFlight(request, reply, engine, sent.phase, now), sent)

    def _send(self, pending: _InFlight, sent: GenerationRequest) -> None:
        self._in_flight[sent.trajectory] = pending
        pending.engine.in_flight += 1
        pending.engine.outbox.put(0, sent)

    def _engine_for(self, trajectory: TrajectoryId) -> EngineClient:
        """The engine that holds the trajectory's session, or a new one for it."""
        engine = self._sticky.get(trajectory)
        if engine is None:
            engine = self._sticky[trajectory] = self._route(trajectory.domain)
        return engine

    def _route(self, domain: str) -> EngineClient:
        if len(self._decoding) == 1:
            return self._decoding[0]
        wanted = class_for(self._affinity, domain)
        candidates = [
            Candidate(index, engine.handle.info.hardware_class, load=engine.in_flight)
            for index, engine in enumerate(self._decoding)
        ]
        choice = route(wanted, candidates)
        taken = choice.hardware_class if choice.fallback else ""
        if taken and self._fallbacks.get(domain) != taken:
            self._sink.emit(Fallback(f"generate:{domain}", wanted, choice.hardware_class, choice.reason))
        self._fallbacks[domain] = taken
        return self._decoding[choice.index]

    async def _collect(self, engine: EngineClient) -> None:
        while True:
            answers: list[GenerationResult] = await engine.handle.call(
                "results", POLL_SECONDS, timeout=POLL_SECONDS + CALL_SECONDS
            )
            for answer in answers:
                self._answered(answer)
            if answers:
                self._waits.moved()

    def _answered(self, result: GenerationResult) -> None:
        trajectory = result.trajectory
        pending = self._in_flight.get(trajectory)
        if (
            pending is None
            or result.engine != pending.engine.address
            or (result.turn, result.attempt) != (pending.request.turn, pending.request.attempt)
        ):
            self.dropped_results += 1
            return
        self._landed(pending)
        if self._prefill is not None:
            finished = result.status is ResultStatus.DONE and result.finish_reason is not FinishReason.ABORT
            if pending.phase is Phase.PREFILL and finished:
                sent = self._prefill.second(pending.request, result)
                if sent is None:
                    pending.reply(aborted(pending.request))
                    return
                pending.engine, pending.phase = self._engine_for(trajectory), Phase.DECODE
                self._send(pending, sent)
                return
            self._prefill.decoded(result)
        self.generated_tokens += len(result.action)
        if result.turn == 0 and result.versions:
            self._on_first_token(trajectory, result.versions[0].version)
        if self._log_turns and result.status is ResultStatus.DONE:
            self._log(pending, result)
        pending.reply(result)

    async def _give_up_late(self) -> None:
        """Answer in place of engines that do not: one that has lost a request still answers its polls."""
        while True:
            await asyncio.sleep(self._answer_seconds / 8)
            oldest = asyncio.get_running_loop().time() - self._answer_seconds
            for pending in [each for each in self._in_flight.values() if each.since < oldest]:
                engine, request = pending.engine.address, pending.request
                self.abort(request.trajectory)
                self._landed(pending)
                error = f"engine {engine.engine} gave no answer in {self._answer_seconds:g} s (engine.answer_timeout)"
                pending.reply(_answer(request, engine, ResultStatus.REJECTED, error))

    def _landed(self, pending: _InFlight) -> None:
        """The request is at its engine no more."""
        del self._in_flight[pending.request.trajectory]
        pending.engine.in_flight -= 1

    def _log(self, pending: _InFlight, result: GenerationResult) -> None:
        seconds = asyncio.get_running_loop().time() - pending.since
        new = len(pending.request.new)
        self._sink.emit(
            TurnFinished(
                result.trajectory, result.turn, result.engine, new, result.cached_tokens, len(result.action), seconds
            )
        )

    async def _all(self, method: str, *args: object) -> list[Any]:
        calls = (engine.handle.call(method, *args, timeout=UPDATE_SECONDS) for engine in self._engines)
        return list(await asyncio.gather(*calls))


def aborted(request: GenerationRequest) -> GenerationResult:
    """The answer to a request that never reached an engine."""
    return _answer(request, EngineAddress(-1), ResultStatus.DONE)


def _answer(
    request: GenerationRequest, engine: EngineAddress, status: ResultStatus, error: str = ""
) -> GenerationResult:
    """An answer without tokens."""
    abort = FinishReason.ABORT
    return GenerationResult(
        request.trajectory, request.turn, request.attempt, engine, status, finish_reason=abort, error=error
    )


def _replace_version(info: EngineInfo, report: UpdateReport) -> EngineInfo:
    return EngineInfo(info.address, report.version, report.checksum, info.max_rows, info.max_sessions, info.max_context)
