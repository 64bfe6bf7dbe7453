"""The interface of a generation engine; every engine passes the same conformance suite.

An engine hosts the sessions of many trajectories (tokens and KV cache), batches their requests
continuously, and drains ADD / ABORT commands between steps. Contract:

* A request is answered exactly once: ``done`` (also after an abort, with the tokens so far), ``miss``
  (the session does not hold ``prefix_length`` tokens with ``prefix_hash``; re-send the full history
  with ``prefix_length = 0``) or ``rejected`` (can never run, ``error`` says why).
* Every generated token carries its behaviour log-probability and is stamped with the version of the
  weights that produced it, at the step that sampled it. Versions change only inside ``update``.
* ``suspend`` returns when no step is running; nothing is generated until ``resume``. Requests may be
  submitted meanwhile and wait. In-flight requests are kept, with the tokens generated so far.
* ``update`` swaps weights in place; all KV is rebuilt under the new weights, lazily, before its session
  generates again.
* Both sides extend the hash of a history by the spans that travelled: ``rolling_hash(rolling_hash(prefix_hash,
  new), action)``, also after a full history was sent as one span.
* A prompt that leaves no room for a token is ``rejected``; an action that reaches the context ends as ``length``.
* A greedy token's log-probability is the model's own, at temperature 1.
* A session lives until ``release`` / ``abort`` or until the engine drops it as least recently used.

All methods run on one event loop. Who calls them: the generation Worker, on behalf of the LLMProxy.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import msgspec

from rollart.data_plane.weights.store import Manifest
from rollart.types import EngineAddress, GenerationRequest, GenerationResult, TrajectoryId


class EngineInfo(msgspec.Struct, frozen=True):
    """What the control plane needs to know of an engine.

    Attributes:
        address: Identity and incarnation.
        version: Version of the weights it holds.
        checksum: Checksum of these weights, equal to the trainer's for the same version.
        max_rows: Requests that decode together.
        max_sessions: Sessions kept between turns.
        max_context: Longest token history.
    """

    address: EngineAddress
    version: int
    checksum: str
    max_rows: int
    max_sessions: int
    max_context: int


class UpdateReport(msgspec.Struct, frozen=True):
    """What an update did.

    Attributes:
        version: Version the engine now holds.
        checksum: Checksum of the weights after the swap.
        seconds: Time of the swap.
        started: Start version of each in-flight request's trajectory whose first token exists, by turn-0
            requests only: the control plane learns start versions of long first turns from it.
        in_flight: Requests kept over the update.
    """

    version: int
    checksum: str
    seconds: float
    started: tuple[tuple[TrajectoryId, int], ...]
    in_flight: int


class EngineStats(msgspec.Struct, frozen=True):
    """Counters since the start, and gauges.

    Attributes:
        steps, prefill_tokens, cached_tokens, generated_tokens: Counters.
        busy_seconds: Time spent in model steps.
        running, waiting, sessions: Gauges.
        preemptions: How often a running request had to give its KV to others; a counter.
        kv_tokens: Tokens whose KV is held, running or kept between turns; a gauge of engines whose KV has a limit.
    """

    steps: int = 0
    prefill_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    busy_seconds: float = 0.0
    running: int = 0
    waiting: int = 0
    sessions: int = 0
    preemptions: int = 0
    kv_tokens: int = 0


class Engine(ABC):
    """See the module docstring for the contract."""

    @abstractmethod
    async def start(self) -> EngineInfo:
        """Load the model and begin stepping. Raises with the remedy if the model cannot be loaded."""

    @abstractmethod
    def submit(self, requests: Sequence[GenerationRequest]) -> None:
        """Add requests; they enter the batch between steps. Adding a known (trajectory, turn, attempt) is a no-op."""

    @abstractmethod
    def abort(self, trajectories: Sequence[TrajectoryId]) -> None:
        """Cancel in-flight requests (they are answered with the partial tokens) and drop the sessions."""

    @abstractmethod
    def release(self, trajectories: Sequence[TrajectoryId]) -> None:
        """Forget finished sessions."""

    @abstractmethod
    async def results(self, max_wait: float) -> list[GenerationResult]:
        """Answers since the last call; waits up to ``max_wait`` seconds for the first one."""

    @abstractmethod
    async def suspend(self) -> None: ...

    @abstractmethod
    async def prefetch(self, manifest: Manifest) -> None:
        """Bring a version's buckets to this host while generating; verified against the manifest."""

    @abstractmethod
    async def update(self, version: int) -> UpdateReport:
        """Swap to a prefetched version. Only while suspended.

        Raises:
            RuntimeError: not suspended, or ``version`` was not prefetched, or it is older than the present one.
        """

    @abstractmethod
    async def resume(self) -> None: ...

    @abstractmethod
    def stats(self) -> EngineStats: ...

    @abstractmethod
    async def stop(self) -> None: ...
