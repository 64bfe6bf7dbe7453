"""Invariant 3: alpha = 0 through the asynchronous machinery equals the plain synchronous loop, bit for bit.

Compared are all batches (order, token ids, log-probabilities, versions, rewards, texts), the checksum of every
version and the bytes of the last checkpoint. The mutants at the end show that each comparison can fail.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import plain_sync_loop
import pytest
import whole_job
from msgspec.structs import replace
from plain_sync_loop import PlainRun
from same_bits import differences
from whole_job import Record

from rollart.cli.launch import launch
from rollart.config.config import Config
from rollart.data_plane.generation import torch_engine
from rollart.events import MemorySink, TrajectoryEnded, TrajectoryStarted, TurnFinished, VersionPublished
from rollart.runtime.in_process import InProcessRuntime
from rollart.runtime.ray import RayRuntime
from rollart.runtime.ray_cluster import RayCluster
from rollart.types import (
    Limit,
    Outcome,
    Segment,
    TokenSpan,
    TrainBatch,
    TrajectoryId,
    Turn,
    VersionRun,
    derive_seed,
)

MakeConfig = Callable[..., Config]

DOMAINS = ("frozen_lake", "guess_number", "math_tool")

SYNC = {"mode": "sync"}
ALPHA_ZERO = {"mode": "rollart", "alpha": 0}

VARIANTS: dict[str, dict[str, Any]] = {
    "as_the_reference": {"run": SYNC},
    "two_engines_and_hosts": {
        "run": ALPHA_ZERO,
        "delays": 1,
        "engine": {"count": 2},
        "rollout": {"hosts": 2},
        "log": {"turns": True},
    },
    "few_environments_and_sessions": {
        "run": ALPHA_ZERO,
        "delays": 2,
        "rollout": {"max_environments": 11},
        "engine": {"max_sessions": 8, "prefill_chunk": 5},
        "log": {"turns": True},
    },
    "evaluation_between": {"run": SYNC, "delays": 3, "evaluation": {"instances": 2, "every": 2}},
    "child_processes": {"run": ALPHA_ZERO, "domains": {"guess_number": {"isolation": "process"}}},
}
"""What may not change the result. ``delays`` is the seed of random latencies of every ``reset`` and ``step``."""


def assert_same(plain: PlainRun, record: Record) -> None:
    assert differences(plain.batches, record.batches) == []
    assert_same_versions(plain, record.of(VersionPublished))
    assert record.weights == plain.weights
    outcomes = {event.outcome for event in record.of(TrajectoryEnded)}
    assert outcomes == {Outcome.TRAINED, Outcome.WITHHELD}, "nothing is started in vain at alpha 0"


def assert_same_versions(plain: PlainRun, published: list[VersionPublished]) -> None:
    """The last version is published only if there is time: nobody needs it."""
    found = {event.version: event.checksum for event in published}
    needed = range(1, len(plain.batches))
    assert found.keys() >= set(needed)
    assert found == {version: plain.checksums[version] for version in found}


def test_the_reference_is_worth_comparing_with(plain: PlainRun) -> None:
    """It trains at every step, on episodes of all kinds."""
    assert len(set(plain.checksums)) == len(plain.checksums) == 4
    members = [member for batch in plain.batches for group in batch.groups for member in group.members]
    assert {member.limit for member in members} == {None, Limit.TURNS, Limit.CONTEXT}
    assert {len(turn.action) for member in members for turn in member.turns()} >= {1, 3}
    assert any(group.withheld for batch in plain.batches for group in batch.groups)
    for batch in plain.batches:
        assert {group.domain for group in batch.groups} == set(DOMAINS)


@pytest.mark.parametrize("variant", VARIANTS)
def test_in_process(variant: str, plain: PlainRun, make_config: MakeConfig, tmp_path: Path) -> None:
    record = whole_job.play(make_config(**VARIANTS[variant]), tmp_path, InProcessRuntime())
    assert_same(plain, record)
    turns = record.of(TurnFinished)
    if variant == "two_engines_and_hosts":
        assert len({turn.engine for turn in turns}) == 2
        assert len({event.host for event in record.of(TrajectoryStarted)}) == 2
    if variant == "few_environments_and_sessions":
        assert any(turn.turn > 0 and turn.cached_tokens == 0 for turn in turns), "no session was dropped"


def test_launched_as_a_user_does(plain: PlainRun, make_config: MakeConfig, tmp_path: Path) -> None:
    sink = MemorySink()
    result = launch(make_config(), tmp_path, sink)
    assert_same_versions(plain, [event for event in sink.events if isinstance(event, VersionPublished)])
    assert (result.checkpoint / "model.safetensors").read_bytes() == plain.weights


@pytest.mark.ray
@pytest.mark.timeout(whole_job.SECONDS + 60)
def test_on_ray(plain: PlainRun, make_config: MakeConfig, tmp_path: Path, ray_cluster: RayCluster) -> None:
    config = make_config(delays=7, run=ALPHA_ZERO, rollout={"hosts": 2, "max_environments": 8})
    assert_same(plain, whole_job.play(config, tmp_path, RayRuntime(ray_cluster, keep_cluster=True)))


def test_mutant_sampling_noise_by_arrival(
    make_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Noise that depends on when a request arrives makes the comparison fail, though both sides have it."""

    def by_arrival() -> Callable[[int, TrajectoryId], int]:
        arrivals = itertools.count()
        return lambda seed, trajectory: derive_seed(seed, next(arrivals))

    config = make_config(run={"iterations": 1})
    monkeypatch.setattr(torch_engine, "noise_key", by_arrival())
    plain = plain_sync_loop.run(config, tmp_path / "plain")
    monkeypatch.setattr(torch_engine, "noise_key", by_arrival())
    record = whole_job.play(config, tmp_path / "job", InProcessRuntime())
    (difference,) = differences(plain.batches, record.batches)
    assert "tokens" in difference


def test_mutant_engine_that_is_not_deterministic(make_config: MakeConfig, tmp_path: Path) -> None:
    """Without fixed rows the log-probabilities depend on what else is in the batch."""
    config = make_config(run={"iterations": 1}, engine={"deterministic": False})
    plain = plain_sync_loop.run(config, tmp_path / "plain")
    record = whole_job.play(config, tmp_path / "job", InProcessRuntime())
    (difference,) = differences(plain.batches, record.batches)
    assert "log-probabilities" in difference or "tokens" in difference


def test_mutant_staler_data(plain: PlainRun, make_config: MakeConfig, tmp_path: Path) -> None:
    """At alpha 1 the second batch starts before W_1: the comparison sees it."""
    config = make_config(run={"mode": "rollart", "alpha": 1, "iterations": 2})
    record = whole_job.play(config, tmp_path, InProcessRuntime())
    assert any(line.startswith("batch 1: ") for line in differences(plain.batches[:2], record.batches))


def _ulp_more(turn: Turn) -> Turn:
    logprobs = turn.action.logprobs.copy()
    logprobs[-1] = np.nextafter(logprobs[-1], np.float32(0))
    return replace(turn, action=TokenSpan.of(turn.action.ids, logprobs))


@pytest.mark.parametrize(
    ("what", "change"),
    [
        ("turn 0: tokens", lambda turn: replace(turn, action=TokenSpan.of(turn.action.ids + 1, turn.action.logprobs))),
        ("turn 0: log-probabilities", _ulp_more),
        ("turn 0: versions", lambda turn: replace(turn, versions=(VersionRun(1, len(turn.action)),))),
    ],
)
def test_the_comparison_sees_one_changed_turn(what: str, change: Callable[[Turn], Turn], plain: PlainRun) -> None:
    batch = plain.batches[0]
    group = batch.groups[2]
    member = group.members[1]
    first, *rest = member.turns()
    other = replace(member, segments=(Segment((change(first), *rest)),))
    changed = replace(group, members=(group.members[0], other, *group.members[2:]))
    groups = (*batch.groups[:2], changed, *batch.groups[3:])
    (difference,) = differences([batch], [TrainBatch(0, groups)])
    assert f"{member.id}: {what}" in difference


def test_the_comparison_sees_another_order(plain: PlainRun) -> None:
    batch = plain.batches[0]
    reordered = TrainBatch(0, batch.groups[::-1])
    group = batch.groups[0]
    turned = TrainBatch(0, (replace(group, members=group.members[::-1]), *batch.groups[1:]))
    assert differences([batch], [reordered])[0].startswith("batch 0: groups")
    assert differences([batch], [turned])[0].startswith("batch 0: members")
    assert differences(plain.batches, plain.batches[:1]) == ["1 batches instead of 3"]
