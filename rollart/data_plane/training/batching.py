"""From a TrainBatch to rows, and from rows to micro-batches of packed tokens. Pure numpy.

A *row* is one segment of one trained trajectory: the input tokens up to the last prediction, and one
*entry* for each generated token. A micro-batch packs rows as a prefix tree: tokens that several rows
begin with are computed once (members of a group share at least their first observation, which is exact
because a causal model's output at a position depends on the prefix alone).

Invariants:

* the loss covers generated tokens only, each exactly once, whatever the packing;
* an entry's coefficient is its share in the loss of the whole batch: it divides by *global* token or
  sequence counts, so neither padding nor micro-batching nor a data-parallel split changes a loss;
* rows come in canonical order (sorted by trajectory id), and so do micro-batches: the result does not
  depend on the order in which groups or members arrived;
* there are no padding rows and no padding entries; a forward pass that pads does so for itself.

Who calls it: the trainer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from rollart.config.domains import DomainConfig
from rollart.config.training import TrainingConfig
from rollart.data_plane.training.advantages import batch_advantages, trained_members
from rollart.types import Segment, TokenSpan, TrainBatch, Trajectory, TrajectoryId, VersionRun


@dataclass(frozen=True, slots=True)
class Row:
    """One segment of one trained trajectory.

    Attributes:
        id, segment: Whose.
        ids: ``int32[n]``, the input: everything before the last generated token.
        slots: ``int32[m]``, input positions whose next token was generated, rising.
        targets: ``int32[m]``, these next tokens.
        behaviour: ``float32[m]``, their log-probabilities when they were sampled.
        on_policy: ``bool[m]``, whether the sampling weights were those of this batch's index.
        advantage: Of the trajectory.
        entropy_bonus: Weight of the entropy of the row's tokens, relative to their surrogate.
        temperature: At which the domain samples.
        trajectory_tokens: Generated tokens in all segments of the trajectory.
    """

    id: TrajectoryId
    segment: int
    ids: np.ndarray
    slots: np.ndarray
    targets: np.ndarray
    behaviour: np.ndarray
    on_policy: np.ndarray
    advantage: float
    entropy_bonus: float
    temperature: float
    trajectory_tokens: int


@dataclass(frozen=True, slots=True)
class Totals:
    """The counts that losses divide by: those of the whole batch (or minibatch, the unit of a step)."""

    tokens: int
    sequences: int
    domain_tokens: Mapping[str, int]

    def coefficient(self, row: Row, norm: Literal["token", "sequence", "domain"]) -> float:
        """Weight of each of the row's entries; over a whole batch they sum to 1."""
        match norm:
            case "token":
                return 1.0 / self.tokens
            case "sequence":
                return 1.0 / (self.sequences * row.trajectory_tokens)
            case "domain":
                return 1.0 / (len(self.domain_tokens) * self.domain_tokens[row.id.domain])


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Rows packed as a prefix tree of ``n`` nodes, with ``m`` entries.

    Attributes:
        tokens, positions: ``int64[n]``, token and position of each node; a parent precedes its children.
        paths: For each row the nodes of its tokens, ``int64[length]``.
        owned_from: For each row the first position whose node no earlier row has.
        predictions: ``int64[p]``, the distinct nodes at which a next token is predicted.
        prediction_temperatures: ``float32[p]``.
        entry_predictions: ``int64[m]``, index into ``predictions`` of each entry, never falling.
        targets, behaviour, on_policy, advantages, coefficients: ``[m]``, the entries.
        entropy_weights: ``float32[m]``, coefficient times entropy bonus.
    """

    tokens: np.ndarray
    positions: np.ndarray
    paths: tuple[np.ndarray, ...]
    owned_from: tuple[int, ...]
    predictions: np.ndarray
    prediction_temperatures: np.ndarray
    entry_predictions: np.ndarray
    targets: np.ndarray
    behaviour: np.ndarray
    on_policy: np.ndarray
    advantages: np.ndarray
    coefficients: np.ndarray
    entropy_weights: np.ndarray


def rows_of(
    batch: TrainBatch, domains: Mapping[str, DomainConfig], config: TrainingConfig, entropy_scale: float = 1.0
) -> list[Row]:
    """The rows of all trained trajectories in canonical order.

    Args:
        batch: What to train.
        domains: Their settings.
        config: Algorithm and normalisation.
        entropy_scale: What is left of the entropy bonus in this iteration.

    Raises:
        ValueError: a trajectory cannot be trained (no score, no log-probabilities, ...); it is named.
    """
    rows: list[Row] = []
    for group, advantages in zip(batch.groups, batch_advantages(batch.groups, config), strict=True):
        domain = domains.get(group.domain)
        temperature = 1.0 if domain is None else domain.temperature or 1.0
        bonus = config.entropy_bonus if domain is None or domain.entropy_bonus is None else domain.entropy_bonus
        for position in trained_members(group):
            member = group.members[position]
            for index, segment in enumerate(member.segments):
                row = _row(
                    member,
                    index,
                    segment,
                    batch.index,
                    advantage=float(advantages[position]),
                    entropy_bonus=bonus * entropy_scale,
                    temperature=temperature,
                )
                if row is not None:
                    rows.append(row)
    rows.sort(key=lambda row: (row.id, row.segment))
    return rows


def _row(
    member: Trajectory,
    index: int,
    segment: Segment,
    version: int,
    *,
    advantage: float,
    entropy_bonus: float,
    temperature: float,
) -> Row | None:
    ids: list[bytes] = []
    logprobs: list[bytes] = []
    runs: list[VersionRun] = []
    slots: list[int] = []
    end = 0
    for turn in segment.turns:
        for span in (turn.observation, turn.action):
            if isinstance(span, TokenSpan):
                ids.append(span.packed_ids)
            elif len(span):
                raise ValueError(f"trajectory {member.id} has lengths instead of tokens: it cannot be trained")
        end += len(turn.observation)
        generated = len(turn.action)
        if generated and isinstance(turn.action, TokenSpan):
            _check_action(member, turn.action, turn.versions, end)
            logprobs.append(turn.action.packed_logprobs)
            runs.extend(turn.versions)
            slots.extend(range(end - 1, end - 1 + generated))
            end += generated
    if not slots:
        return None
    tokens = np.frombuffer(b"".join(ids), np.int32)
    behaviour = np.frombuffer(b"".join(logprobs), np.float32)
    if not np.isfinite(behaviour).all():
        raise ValueError(f"trajectory {member.id} has a behaviour log-probability that is not finite")
    where = np.array(slots, np.int32)
    return Row(
        id=member.id,
        segment=index,
        ids=tokens[: slots[-1] + 1],
        slots=where,
        targets=tokens[where + 1],
        behaviour=behaviour,
        on_policy=np.array([run.version == version for run in runs]).repeat([run.length for run in runs]),
        advantage=advantage,
        entropy_bonus=entropy_bonus,
        temperature=temperature,
        trajectory_tokens=member.generated_tokens,
    )


def _check_action(member: Trajectory, action: TokenSpan, versions: Sequence[VersionRun], start: int) -> None:
    if start == 0:
        raise ValueError(f"trajectory {member.id} begins with a generated token: there is no prompt to predict it from")
    if len(action.packed_logprobs) != len(action.packed_ids):  # four bytes each
        raise ValueError(f"trajectory {member.id} has generated tokens without a log-probability each")
    versioned = sum(run.length for run in versions)
    if versioned != len(action):
        raise ValueError(f"trajectory {member.id} has {len(action)} generated tokens, but versions for {versioned}")


def totals_of(rows: Iterable[Row]) -> Totals:
    """Global counts over ``rows``; a trajectory with several segments is one sequence."""
    domain_tokens: Counter[str] = Counter()
    sequences: set[TrajectoryId] = set()
    for row in rows:
        domain_tokens[row.id.domain] += len(row.targets)
        sequences.add(row.id)
    return Totals(domain_tokens.total(), len(sequences), dict(domain_tokens))


def minibatches_of(rows: Sequence[Row], parts: int) -> list[list[Row]]:
    """Split rows into ``parts`` of whole groups, each a cross-section of the domains; empty parts are left out."""
    groups: dict[tuple[str, int], int] = {}
    split: list[list[Row]] = [[] for _ in range(parts)]
    for row in rows:
        rank = groups.setdefault((row.id.domain, row.id.group), len(groups))
        split[rank % parts].append(row)
    return [part for part in split if part]


def micro_batches(
    rows: Sequence[Row], totals: Totals, config: TrainingConfig, *, share_prefixes: bool
) -> Iterator[MicroBatch]:
    """Pack rows into micro-batches of at most ``config.micro_batch_tokens`` tokens (one row may exceed it).

    Args:
        rows: In canonical order.
        totals: Of the whole batch, also when ``rows`` are a part of it.
        config: Normalisation and size.
        share_prefixes: Compute shared prefixes once, and count distinct nodes. Otherwise rows of similar
            length go together, each with nodes of its own, and padding up to the longest is counted.
    """
    part: list[Row] = []
    size = longest = 0
    for row in sorted(rows, key=_by_content if share_prefixes else _by_length):
        length = len(row.ids)
        if share_prefixes:
            grown = size + length - (_common_prefix(part[-1].ids, row.ids) if part else 0)
        else:
            grown = max(longest, length) * (len(part) + 1)
        if part and grown > config.micro_batch_tokens:
            yield _pack(part, totals, config, share_prefixes)
            part, longest, grown = [], 0, length
        part.append(row)
        size, longest = grown, max(longest, length)
    if part:
        yield _pack(part, totals, config, share_prefixes)


def _by_content(row: Row) -> tuple[bytes, TrajectoryId, int]:
    return row.ids.astype(">u4").tobytes(), row.id, row.segment


def _by_length(row: Row) -> tuple[int, TrajectoryId, int]:
    return len(row.ids), row.id, row.segment


def _common_prefix(first: np.ndarray, second: np.ndarray) -> int:
    length = min(len(first), len(second))
    differs = np.flatnonzero(first[:length] != second[:length])
    return int(differs[0]) if len(differs) else length


def _pack(rows: Sequence[Row], totals: Totals, config: TrainingConfig, share_prefixes: bool) -> MicroBatch:
    paths: list[np.ndarray] = []
    owned_from: list[int] = []
    count = 0
    for index, row in enumerate(rows):
        shared = _common_prefix(rows[index - 1].ids, row.ids) if share_prefixes and index else 0
        path = np.arange(count - shared, count - shared + len(row.ids), dtype=np.int64)
        if shared:
            path[:shared] = paths[-1][:shared]
        count += len(row.ids) - shared
        paths.append(path)
        owned_from.append(shared)
    sizes = [len(row.targets) for row in rows]
    nodes = np.concatenate([path[row.slots] for path, row in zip(paths, rows, strict=True)])
    keys = np.empty(len(nodes), np.complex128)  # node and temperature as one sortable number
    keys.real, keys.imag = nodes, np.repeat([row.temperature for row in rows], sizes)
    predictions, entry_predictions = np.unique(keys, return_inverse=True)
    order = np.argsort(entry_predictions, kind="stable")
    coefficients = [totals.coefficient(row, config.loss_norm) for row in rows]
    entropies = [row.entropy_bonus * coefficient for row, coefficient in zip(rows, coefficients, strict=True)]
    return MicroBatch(
        tokens=np.concatenate([row.ids[start:] for row, start in zip(rows, owned_from, strict=True)]).astype(np.int64),
        positions=np.concatenate([np.arange(start, len(row.ids)) for row, start in zip(rows, owned_from, strict=True)]),
        paths=tuple(paths),
        owned_from=tuple(owned_from),
        predictions=predictions.real.astype(np.int64),
        prediction_temperatures=predictions.imag.astype(np.float32),
        entry_predictions=entry_predictions[order].astype(np.int64),
        targets=np.concatenate([row.targets for row in rows])[order].astype(np.int64),
        behaviour=np.concatenate([row.behaviour for row in rows])[order],
        on_policy=np.concatenate([row.on_policy for row in rows])[order],
        advantages=np.repeat([row.advantage for row in rows], sizes)[order].astype(np.float32),
        coefficients=np.repeat(coefficients, sizes)[order].astype(np.float32),
        entropy_weights=np.repeat(entropies, sizes)[order].astype(np.float32),
    )
