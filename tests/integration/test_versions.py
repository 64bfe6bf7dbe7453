"""Invariant 4 with a real model: versions change exactly at the update boundary, never fall, and are told truly.

At alpha 1, with actions of many tokens, every update finds actions in progress: episodes wait for the next version
between their two actions, and the engine has a new version only while it generates.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import held_env
import numpy as np
import pytest
import torch
import watching_workers
import whole_job
from watching_workers import BusyGenerator, KeepingLearner
from whole_job import Record

from rollart.config.config import Config
from rollart.data_plane.generation.weight_loading import load_weights
from rollart.data_plane.training.models import load_model
from rollart.events import EngineUpdated, Event, FirstToken, VersionPublished
from rollart.runtime.in_process import InProcessRuntime
from rollart.types import Trajectory

ITERATIONS = 4
UNTIL = [0, 1, 0, 1, 2, 2, 3, 3]
"""By task. Groups of two tasks make a batch; at alpha 1 two batches' worth starts at once, and then one after each
batch. So tasks 0 and 2 are batch 0, and each later batch needs the version that comes out of the one before it."""

TOLERANCE = 1e-4
"""Of log-probabilities in float32."""


class Announcer:
    """Lets the episodes go on that wait for a version, as soon as it is published."""

    def emit(self, event: Event) -> None:
        if isinstance(event, VersionPublished):
            held_env.publish(event.version)


@pytest.fixture(scope="module")
def config(make_config: Callable[..., Config]) -> Config:
    held = {"env": "held_env:Held", "args": {"until": UNTIL}, "max_new_tokens": 40, "max_turns": 3, "max_context": 128}
    return make_config(
        run={"mode": "rollart", "alpha": 1, "iterations": ITERATIONS},
        domains={"math_tool": held | {"isolation": "inline"}, "frozen_lake": None, "guess_number": None},
        rollout={"groups_per_batch": 2, "group_size": 4},
        engine={"deterministic": False, "max_rows": 16},
        training={"learning_rate": 0.02},
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("versions")


@pytest.fixture(scope="module")
def record(config: Config, folder: Path) -> Record:
    held_env.forget()
    watching_workers.published.clear()
    return whole_job.play(
        config, folder, InProcessRuntime(), sink=Announcer(), learner=KeepingLearner, generator=BusyGenerator
    )


@pytest.fixture(scope="module")
def trained(record: Record) -> list[tuple[int, Trajectory]]:
    """Every trained trajectory with its batch."""
    return [(batch.index, member) for batch in record.batches for group in batch.groups for member in group.members]


def token_versions(trajectory: Trajectory) -> list[int]:
    """The version of each generated token."""
    return [run.version for turn in trajectory.turns() for run in turn.versions for _ in range(run.length)]


def test_versions_never_fall_and_respect_the_bound(trained: list[tuple[int, Trajectory]]) -> None:
    assert len(trained) == ITERATIONS * 2 * 4
    for index, trajectory in trained:
        versions = token_versions(trajectory)
        assert len(versions) == trajectory.generated_tokens
        assert versions == sorted(versions)
        assert index - 1 <= versions[0]
        assert versions[-1] <= index


def test_versions_change_at_updates_only(record: Record, trained: list[tuple[int, Trajectory]]) -> None:
    updates: list[EngineUpdated] = record.of(EngineUpdated)
    assert [update.version for update in updates] == [1, 2, 3]
    changed = dict.fromkeys((1, 2, 3), 0)
    for _, trajectory in trained:
        for turn in trajectory.turns():
            for before, after in itertools.pairwise(turn.versions):
                assert after.version == before.version + 1, "an action skipped a version"
                changed[after.version] += 1
    for update in updates:
        # an action that had no token yet, or ended at the boundary, is in flight and changes nothing
        assert changed[update.version] <= update.in_flight
    assert sum(changed.values()) > 0, "no update found an action in progress"


def test_start_versions_are_known_to_the_control_plane(record: Record, trained: list[tuple[int, Trajectory]]) -> None:
    told = {event.id: event.version for event in record.of(FirstToken)}
    assert all(told[trajectory.id] == trajectory.start_version for _, trajectory in trained)


def test_logprobs_are_those_of_the_version(folder: Path, trained: list[tuple[int, Trajectory]]) -> None:
    """Each token's behaviour log-probability is that of a plain forward pass with the weights of its version.

    With the weights of the version before, they are not: a label that is off by one would be noticed.
    """
    model = load_model(folder / "model").eval()
    versions = {0: {name: tensor.clone() for name, tensor in model.state_dict().items()}}
    for version, (manifest, flat) in watching_workers.published.items():
        load_weights(model, manifest, flat)
        versions[version] = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    gaps = {shift: [_gap(model, versions, trajectory, shift) for _, trajectory in trained] for shift in (0, 1)}
    assert max(gaps[0]) < TOLERANCE
    assert max(gaps[1]) > 100 * TOLERANCE


def _gap(
    model: torch.nn.Module, versions: dict[int, dict[str, torch.Tensor]], trajectory: Trajectory, shift: int
) -> float:
    """Largest difference between behaviour log-probabilities and those of the labelled version minus ``shift``."""
    spans = [span for turn in trajectory.turns() for span in (turn.observation, turn.action)]
    tokens = torch.tensor(np.concatenate([span.ids for span in spans]), dtype=torch.long)
    generated = np.concatenate([np.full(len(span), number % 2) for number, span in enumerate(spans)]).astype(bool)
    behaviour = np.concatenate([turn.action.logprobs for turn in trajectory.turns()])
    labels = np.array(token_versions(trajectory))
    gap = 0.0
    for version in set(labels.tolist()):
        model.load_state_dict(versions[max(0, version - shift)])
        with torch.inference_mode():
            logprobs = torch.log_softmax(model(input_ids=tokens[None]).logits[0, :-1].float(), -1)
        chosen = logprobs.gather(-1, tokens[1:, None])[:, 0].numpy()[generated[1:]]
        gap = max(gap, float(np.abs(chosen - behaviour)[labels == version].max()))
    return gap
