"""Whether two runs trained the same, to the bit, and where they part if not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from msgspec.structs import replace

from rollart.codec import encode
from rollart.types import Span, TokenSpan, TrainBatch, Trajectory


def differences(expected: list[TrainBatch], actual: list[TrainBatch]) -> list[str]:
    """One line for each batch that differs: what differs first in it. Times are not compared."""
    found = [
        f"batch {position}: {_first(one, other)}"
        for position, (one, other) in enumerate(zip(expected, actual, strict=False))
        if encode(_timeless(one)) != encode(_timeless(other))
    ]
    if len(expected) != len(actual):
        found.append(f"{len(actual)} batches instead of {len(expected)}")
    return found


def _timeless(batch: TrainBatch) -> TrainBatch:
    """The batch without what is a duration."""
    return replace(
        batch,
        groups=tuple(
            replace(group, members=tuple(replace(member, seconds={}) for member in group.members))
            for group in batch.groups
        ),
    )


def _first(expected: TrainBatch, actual: TrainBatch) -> str:
    pairs = zip(_facts(expected), _facts(actual), strict=False)
    for (what, value), (other, found) in pairs:
        if (what, encode(value)) != (other, encode(found)):
            return f"{other} {found} instead of {what} {value}"
    return "one is longer"


def _facts(batch: TrainBatch) -> Iterator[tuple[str, Any]]:
    """Everything in a batch that is compared, the order of its groups and members first."""
    yield "groups", [f"{group.domain}/{group.task}/{group.index}" for group in batch.groups]
    yield "members", [str(member.id) for group in batch.groups for member in group.members]
    for group in batch.groups:
        for member in group.members:
            yield from ((f"{member.id}: {what}", value) for what, value in _trajectory_facts(member))
        yield f"group {group.index}: start version and withheld", (group.start_version, group.withheld)
    yield "batch index", batch.index


def _trajectory_facts(trajectory: Trajectory) -> Iterator[tuple[str, Any]]:
    for number, turn in enumerate(trajectory.turns()):
        where = f"turn {number}"
        yield f"{where}: observation", _numbers(turn.observation)
        yield f"{where}: tokens", _numbers(turn.action)
        yield f"{where}: log-probabilities", _numbers(turn.action, logprobs=True)
        yield f"{where}: versions", turn.versions
        rest = (turn.finish_reason, turn.reward, turn.observation_text, turn.action_text)
        yield f"{where}: finish reason, reward and texts", rest
    yield "seed", trajectory.seed
    yield "score", trajectory.score
    yield "limit", trajectory.limit
    yield "metrics", trajectory.metrics


def _numbers(span: Span, logprobs: bool = False) -> list[float]:
    assert isinstance(span, TokenSpan)
    values = span.logprobs if logprobs else span.ids
    return [] if values is None else values.tolist()
