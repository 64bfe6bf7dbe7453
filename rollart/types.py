"""The words of the system as types: identities, token spans, trajectories, groups, batches, outcomes.

Every value here is an immutable ``msgspec.Struct``: it is built once, compared by value, and crosses
process borders through :mod:`rollart.codec` without a hand-written schema. The module imports neither
torch nor ray, so that environment, reward and control-plane processes stay light.

Invariants kept by construction:

* token ids are never decoded and re-encoded: a trajectory is a list of turns of token ids;
* every generated token has a behaviour log-probability and the version that produced it, and versions
  never fall inside a trajectory;
* a trajectory has one identity for life; a retry is a new trajectory with a higher ``attempt``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from enum import StrEnum

import msgspec
import numpy as np
import numpy.typing as npt

Ids = np.ndarray
"""One-dimensional ``int32`` array of token ids."""

LogProbs = np.ndarray
"""One-dimensional ``float32`` array of natural-log probabilities, one for each generated token."""


class Purpose(StrEnum):
    """What a trajectory is for; evaluation trajectories have a ledger of their own."""

    TRAIN = "train"
    EVAL = "eval"


class TrajectoryId(msgspec.Struct, frozen=True, order=True, array_like=True):
    """Identity of one episode of the policy in one environment.

    Attributes:
        domain: Name of the task family.
        task: Index of the task instance in the domain's sequence (the instance's seed derives from it).
        group: Index of the group in the run, unique over all domains of one purpose.
        member: Position in the group, ``0 <= member < group_size + redundant members``.
        attempt: 0 for the first try; a retry after a failure is the same member with ``attempt + 1``.
        purpose: ``train`` or ``eval``.
    """

    domain: str
    task: int
    group: int
    member: int
    attempt: int = 0
    purpose: Purpose = Purpose.TRAIN

    def __str__(self) -> str:
        path = f"{self.domain}/{self.task}/{self.group}/{self.member}/{self.attempt}"
        return path if self.purpose is Purpose.TRAIN else f"{self.purpose.value}:{path}"

    @classmethod
    def parse(cls, text: str) -> TrajectoryId:
        """Read the form that ``str()`` writes.

        Raises:
            ValueError: ``text`` is not ``[eval:]domain/task/group/member/attempt``.
        """
        purpose, _, path = text.rpartition(":")
        parts = path.rsplit("/", 4)
        if len(parts) != 5:
            raise ValueError(f"not a trajectory id: {text!r} (expected domain/task/group/member/attempt)")
        task, group, member, attempt = (int(part) for part in parts[1:])
        return cls(parts[0], task, group, member, attempt, Purpose(purpose or "train"))


def derive_seed(root: int, *parts: str | int) -> int:
    """A 63-bit seed that depends on the root seed and on every part, and on nothing else."""
    text = "\x1f".join([str(root), *map(str, parts)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


class VersionRun(msgspec.Struct, frozen=True, array_like=True):
    """``length`` consecutive generated tokens that were all produced by weights ``version``."""

    version: int
    length: int


class TokenSpan(msgspec.Struct, frozen=True, tag="t", array_like=True):
    """Token ids, and for generated tokens their log-probabilities under the behaviour policy.

    Held as raw bytes, so that a span crosses process borders and the LLMProxy without being looked at;
    ``ids`` and ``logprobs`` are read-only views. Make one with :meth:`of`.

    Attributes:
        packed_ids: Little-endian ``int32``.
        packed_logprobs: Little-endian ``float32``, empty for observations.
    """

    packed_ids: bytes
    packed_logprobs: bytes = b""

    @classmethod
    def of(cls, ids: npt.ArrayLike, logprobs: npt.ArrayLike | None = None) -> TokenSpan:
        """A span of ``int[n]`` ids and, for generated tokens, ``float[n]`` log-probabilities.

        Raises:
            ValueError: the two have different lengths.
        """
        tokens = np.asarray(ids, np.int32)
        if logprobs is None:
            return cls(tokens.tobytes())
        values = np.asarray(logprobs, np.float32)
        if values.shape != tokens.shape:
            raise ValueError(f"{tokens.shape} ids, but {values.shape} log-probabilities")
        return cls(tokens.tobytes(), values.tobytes())

    @property
    def ids(self) -> Ids:
        """``int32[n]``, read-only."""
        return np.frombuffer(self.packed_ids, np.int32)

    @property
    def logprobs(self) -> LogProbs | None:
        """``float32[n]`` after temperature, top-k and top-p, read-only; ``None`` for observations."""
        return np.frombuffer(self.packed_logprobs, np.float32) if self.packed_logprobs else None

    def __len__(self) -> int:
        return len(self.packed_ids) // 4


class LengthSpan(msgspec.Struct, frozen=True, tag="n", array_like=True):
    """A span of which only the length matters: virtual time and emulated engines use it."""

    length: int

    def __len__(self) -> int:
        return self.length


Span = TokenSpan | LengthSpan

EMPTY = LengthSpan(0)


def join(spans: Iterable[Span]) -> Span:
    """Concatenate spans of one kind, without their log-probabilities.

    Raises:
        TypeError: token spans and length spans are mixed.
    """
    parts = [span for span in spans if len(span)]
    if all(isinstance(part, TokenSpan) for part in parts):
        return TokenSpan(b"".join(part.packed_ids for part in parts if isinstance(part, TokenSpan)))
    if all(isinstance(part, LengthSpan) for part in parts):
        return LengthSpan(sum(len(part) for part in parts))
    raise TypeError("a trajectory mixes token spans with length-only spans")


class FinishReason(StrEnum):
    """Why an engine stopped generating a turn."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"


class Limit(StrEnum):
    """The limit that cut a trajectory before its environment terminated."""

    TURNS = "max_turns"
    CONTEXT = "context"
    ENVIRONMENT = "environment"


class Turn(msgspec.Struct, frozen=True, eq=False):
    """One exchange: the rendered observation, then the action that the policy generated for it.

    Attributes:
        observation: Tokens that were appended before the action (system prompt included in turn 0).
        action: Generated tokens, the stop token among them.
        versions: Runs of equal version over ``action``, never falling.
        finish_reason: Why generation of the action ended.
        reward: What ``step`` paid for the action.
        observation_text, action_text: The texts before rendering and after parsing, kept for reward
            functions and for display; the trainer never reads them.
    """

    observation: Span
    action: Span
    versions: tuple[VersionRun, ...]
    finish_reason: FinishReason = FinishReason.STOP
    reward: float = 0.0
    observation_text: str = ""
    action_text: str = ""


class Segment(msgspec.Struct, frozen=True, eq=False):
    """A linear run of turns over one token history. A gym-style episode is exactly one segment."""

    turns: tuple[Turn, ...]


class Score(msgspec.Struct, frozen=True):
    """What the reward function said of a trajectory.

    Attributes:
        value: The reward that training uses (shaping included).
        success: The unshaped verdict of the task; ``None`` where the task has none.
        parts: Named components of ``value``.
    """

    value: float
    success: bool | None = None
    parts: dict[str, float] = {}


class Trajectory(msgspec.Struct, frozen=True, eq=False):
    """One finished episode.

    Attributes:
        id: Identity.
        seed: Seed of the task instance, the same for all members of a group.
        segments: Token histories (one for gym-style environments).
        score: ``None`` until the reward has been computed.
        limit: The limit that cut the episode, or ``None`` if the environment terminated.
        metrics: Numbers the environment reported in ``info["metrics"]`` at its last step.
        seconds: Where the time went: ``reset``, ``step``, ``generate``, ``reward``.
    """

    id: TrajectoryId
    seed: int
    segments: tuple[Segment, ...]
    score: Score | None = None
    limit: Limit | None = None
    metrics: dict[str, float] = {}
    seconds: dict[str, float] = {}

    def turns(self) -> Iterator[Turn]:
        for segment in self.segments:
            yield from segment.turns

    @property
    def start_version(self) -> int | None:
        """The version that generated the first token; ``None`` if nothing was generated."""
        for turn in self.turns():
            for run in turn.versions:
                return run.version
        return None

    @property
    def generated_tokens(self) -> int:
        return sum(len(turn.action) for turn in self.turns())

    @property
    def total_tokens(self) -> int:
        return sum(len(turn.observation) + len(turn.action) for turn in self.turns())


class Group(msgspec.Struct, frozen=True, eq=False):
    """``group_size`` scored trajectories that started from the same task instance.

    The unit of advantage and of batch forming. Members that are withheld only count in the baseline: those that
    a limit cut in a domain with ``truncated: mask``, and with ``run.stale: withhold`` those that are too old.
    """

    domain: str
    task: int
    index: int
    members: tuple[Trajectory, ...]
    start_version: int
    withheld: tuple[int, ...] = ()
    """Positions in ``members`` whose tokens are not trained."""


class TrainBatch(msgspec.Struct, frozen=True, eq=False):
    """Batch ``index``: the groups whose gradient is taken at W_index."""

    index: int
    groups: tuple[Group, ...]


class Outcome(StrEnum):
    """The one final state of a trajectory."""

    TRAINED = "trained"
    FILTERED = "filtered"
    WITHHELD = "withheld"
    EVICTED_STALE = "evicted_stale"
    ABORTED_STALE = "aborted_stale"
    SURPLUS = "surplus"
    """Redundant: its group was complete without it, or the run's last batch without its finished group."""
    GROUP_LOST = "group_lost"
    FAILED = "failed"
    ABANDONED = "abandoned"
    """The run ended before it had another outcome."""


class FailureKind(StrEnum):
    """What failed, for the outcome ``failed(kind)``. Infrastructure failure is never a reward."""

    RESET_ERROR = "reset_error"
    RESET_TIMEOUT = "reset_timeout"
    STEP_ERROR = "step_error"
    STEP_TIMEOUT = "step_timeout"
    ENVIRONMENT_CRASH = "environment_crash"
    RENDERING = "rendering"
    PROMPT_TOO_LONG = "prompt_too_long"
    GENERATION = "generation"
    REWARD_ERROR = "reward_error"
    REWARD_TIMEOUT = "reward_timeout"
    HOST_LOST = "host_lost"
    """The process of its environment host is gone: nobody's fault in the episode, so no retry is used up."""
    NO_RANDOM_POLICY = "no_random_policy"
    """The random policy was asked for and the environment declares none; never a training outcome."""

    @property
    def retryable(self) -> bool:
        """Whether a fresh environment may succeed where this one failed."""
        return self not in (FailureKind.PROMPT_TOO_LONG, FailureKind.RENDERING, FailureKind.NO_RANDOM_POLICY)


class EpisodeFailure(msgspec.Struct, frozen=True):
    """A trajectory that ended without a score: what failed and the first cause, for the user."""

    id: TrajectoryId
    kind: FailureKind
    message: str
    generated_tokens: int = 0


class EngineAddress(msgspec.Struct, frozen=True, order=True, array_like=True):
    """An engine and how often it has been restarted; results of an old incarnation are dropped."""

    engine: int
    incarnation: int = 0


class SamplingParams(msgspec.Struct, frozen=True, array_like=True):
    """How an action is sampled.

    Attributes:
        max_new_tokens: Upper bound on the generated tokens of one turn.
        temperature: 0 means greedy.
        top_p: Nucleus mass in (0, 1]; 1 disables it.
        top_k: 0 disables it.
        stop_token_ids: Generation ends with any of these; the stop token belongs to the action.
    """

    max_new_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    stop_token_ids: tuple[int, ...] = ()


class Phase(StrEnum):
    """Which part of a request an engine is asked for."""

    WHOLE = "whole"
    PREFILL = "prefill"
    """Compute the prompt's keys and values, generate nothing."""
    DECODE = "decode"
    """Generate; another engine has computed the prompt's keys and values."""


class GenerationRequest(msgspec.Struct, frozen=True, eq=False, array_like=True):
    """Generate the action of one turn. Idempotent by (trajectory, turn, attempt).

    Attributes:
        trajectory: Whose turn.
        turn: 0-based index of the turn.
        attempt: 0, or how often the turn has been re-sent (session miss, dead engine).
        prefix_length: Tokens the engine's session must already hold; 0 sends the full history.
        prefix_hash: :func:`rolling_hash` of these tokens; the engine answers ``MISS`` on a mismatch.
        new: Tokens to append to the prefix before generating.
        sampling: How to sample.
        phase: Which part of it the engine is asked for.
        kv_version: For ``DECODE``: version of the weights under which the prompt was computed; -1 if it was not.
    """

    trajectory: TrajectoryId
    turn: int
    attempt: int
    prefix_length: int
    prefix_hash: int
    new: Span
    sampling: SamplingParams
    phase: Phase = Phase.WHOLE
    kv_version: int = -1


class ResultStatus(StrEnum):
    """How an engine disposed of a request."""

    DONE = "done"
    MISS = "miss"
    """The engine does not hold the prefix: send the full history."""
    REJECTED = "rejected"
    """The request can never run here, e.g. it exceeds the context; ``error`` says why."""


class GenerationResult(msgspec.Struct, frozen=True, eq=False, array_like=True):
    """The answer to one :class:`GenerationRequest`.

    Attributes:
        trajectory, turn, attempt: As in the request.
        engine: Who generated it.
        status: ``done``, ``miss`` or ``rejected``.
        action: Generated tokens with log-probabilities (the partial ones after an abort).
        versions: Runs of equal version over ``action``.
        finish_reason: Why generation ended.
        cached_tokens: Prompt tokens whose KV was reused.
        error: For ``rejected``: what and what to do.
        kv_version: For a ``PREFILL``: version of the weights under which the prompt was computed.
    """

    trajectory: TrajectoryId
    turn: int
    attempt: int
    engine: EngineAddress
    status: ResultStatus
    action: Span = EMPTY
    versions: tuple[VersionRun, ...] = ()
    finish_reason: FinishReason = FinishReason.STOP
    cached_tokens: int = 0
    error: str = ""
    kv_version: int = -1


class EpisodeSpec(msgspec.Struct, frozen=True, array_like=True):
    """Everything an environment host needs to run one trajectory; the domain's settings are there."""

    id: TrajectoryId
    seed: int
    greedy: bool = False
    """Evaluation may ask for greedy actions."""
    random: bool = False
    """Play uniformly random valid actions instead of the model's: the floor that a policy is compared with."""


HASH_START = 0


def rolling_hash(state: int, span: Span) -> int:
    """Extend the 64-bit hash of a token history by one span; length-only spans hash their length."""
    data = span.length.to_bytes(8, "little") if isinstance(span, LengthSpan) else span.packed_ids
    digest = hashlib.blake2b(state.to_bytes(8, "little") + data, digest_size=8).digest()
    return int.from_bytes(digest, "little")


class TrainReport(msgspec.Struct, frozen=True):
    """What ``train_step(k)`` did: it turned W_k into W_{k+1}.

    Attributes:
        index: k.
        version: k + 1.
        metrics: loss, grad_norm, entropy, clip_share, zero_advantage_share, logprob_gap, ...
        alarms: Human-readable alarms (entropy collapse, NaN, ...), empty when healthy.
        seconds: Wall time of the step.
        tokens: Tokens that entered the loss.
    """

    index: int
    version: int
    metrics: dict[str, float]
    seconds: float
    tokens: int
    alarms: tuple[str, ...] = ()
