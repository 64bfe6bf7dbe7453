"""A run that is stopped and resumed ends as one that was not; a state that does not fit is refused."""

from __future__ import annotations

import copy
import json
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest
from invariants import violations
from scenarios import Scenario, config_of
from story import Story
from virtual_job import joined, play

from rollart.config.config import Config
from rollart.control_plane.checkpoints import CheckpointError, latest, resumable, state_file
from rollart.control_plane.job_state import JobState, fixed_settings
from rollart.events import Alarm, DomainSuspended, EvaluationEnded, TrajectoryStarted
from rollart.runtime.runtime import WorkerLost
from rollart.types import Purpose

SCENARIO = Scenario(weights=(5.0, 3.0, 1.0), groups_per_batch=3, iterations=8, alpha=2, slow=(0.0, 0.05), train=1.0)


def trained(*stories: Story) -> Counter[str]:
    """Trained groups by domain."""
    return Counter(group.domain for story in stories for batch in story.batches for group in batch.groups)


def trained_tasks(*stories: Story) -> set[tuple[str, int]]:
    return {(group.domain, group.task) for story in stories for batch in story.batches for group in batch.groups}


@pytest.mark.parametrize("mode", ["sync", "rollart"])
@pytest.mark.parametrize("stop_after", [1, 4, 7])
def test_a_resumed_run_ends_as_one_that_was_not_stopped(mode: str, stop_after: int, tmp_path: Path) -> None:
    scenario = msgspec.structs.replace(SCENARIO, mode=mode)
    straight = play(scenario, tmp_path / "straight")
    first = play(scenario, tmp_path / "run", stop_after=stop_after)
    stopped = latest(tmp_path / "run")
    second = play(scenario, tmp_path / "run", stopped)

    assert (first.error, second.error) == (None, None)
    assert len(first.batches) == stopped.version == stop_after
    assert any(queue.returned for queue in stopped.tasks.values()) == (mode == "rollart")
    assert [batch.index for batch in first.batches + second.batches] == list(range(8))
    assert trained(first, second) == trained(straight)
    assert trained_tasks(first, second) == trained_tasks(straight)
    end, straight_end = latest(tmp_path / "run"), latest(tmp_path / "straight")
    assert end.version == straight_end.version == 8
    assert end.slots == straight_end.slots
    assert {name: task.cursor for name, task in end.tasks.items()} == {
        name: task.cursor for name, task in straight_end.tasks.items()
    }
    assert violations(joined(first, second)) == []


def test_training_time_counts_over_a_resume(tmp_path: Path) -> None:
    play(SCENARIO, tmp_path, stop_after=3)
    first = latest(tmp_path)
    play(SCENARIO, tmp_path, first, stop_after=5)
    second = latest(tmp_path)
    assert 0 < first.train_seconds < second.train_seconds

    limited = msgspec.structs.replace(SCENARIO, max_train_seconds=second.train_seconds)
    story = play(limited, tmp_path, second)
    assert story.error is None
    assert story.batches == []
    assert latest(tmp_path).version == 5

    story = play(msgspec.structs.replace(limited, max_train_seconds=second.train_seconds + 0.01), tmp_path, second)
    assert len(story.batches) == 1


def test_what_a_failed_start_began_is_known_to_the_next_even_if_it_trained_nothing(tmp_path: Path) -> None:
    first = play(SCENARIO, tmp_path, stop_after=3)
    stopped = latest(tmp_path)
    failed = play(msgspec.structs.replace(SCENARIO, death=(0.4, "generate-0")), tmp_path, stopped)
    assert isinstance(failed.error, WorkerLost)
    assert latest(tmp_path).version == stopped.version, "nothing was trained"
    assert latest(tmp_path).next_group > stopped.next_group
    assert latest(tmp_path).train_seconds > stopped.train_seconds
    last = play(SCENARIO, tmp_path, latest(tmp_path))

    started = [e.id for story in (first, failed, last) for e in story.events if isinstance(e, TrajectoryStarted)]
    assert len(started) == len(set(started))
    assert trained_tasks(first, last) == trained_tasks(play(SCENARIO, tmp_path / "straight"))


def test_a_suspended_domain_stays_suspended(tmp_path: Path) -> None:
    hopeless = msgspec.structs.replace(SCENARIO, weights=(1.0, 1.0), hopeless=True, starvation_limit=2)
    first = play(hopeless, tmp_path, stop_after=4)
    assert [event.domain for event in first.events if isinstance(event, DomainSuspended)] == ["d0"]

    second = play(hopeless, tmp_path, latest(tmp_path))

    assert trained(second) == {"d1": 12}
    assert not [event for event in second.events if isinstance(event, TrajectoryStarted) and event.id.domain == "d0"]
    assert "domain d0" in [event.subject for event in second.events if isinstance(event, Alarm)]


def test_evaluation_passes_are_numbered_over_a_resume(tmp_path: Path) -> None:
    scenario = msgspec.structs.replace(SCENARIO, evaluate_every=2)
    stories = [play(scenario, tmp_path, stop_after=5)]
    stories.append(play(scenario, tmp_path, latest(tmp_path)))

    ids = [event.id for story in stories for event in story.events if isinstance(event, EvaluationEnded)]
    assert all(id.purpose is Purpose.EVAL for id in ids)
    assert len(ids) == len(set(ids))


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run with one checkpoint at version 3, of ``SCENARIO``."""
    play(SCENARIO, tmp_path, stop_after=3)
    return tmp_path


def changed(key: str, value: Any) -> Config:
    """The configuration of ``SCENARIO`` with one setting changed; ``None`` takes it out."""
    settings = copy.deepcopy(config_of(SCENARIO).model_dump(mode="json"))
    *path, last = key.split(".")
    section = settings
    for name in path:
        section = section[name]
    if value is None:
        del section[last]
    else:
        section[last] = value
    return Config.model_validate(settings)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("run.iterations", 50),
        ("run.alpha", 0),
        ("run.max_train_seconds", 5.0),
        ("evaluation.instances", 3),
        ("log.turns", True),
        ("training.learning_rate", 0.5),
        ("domains.d0.weight", 2.0),
        ("domains.d0.max_turns", 9),
        ("rollout.groups_per_batch", 7),
    ],
)
def test_safe_changes_are_allowed(key: str, value: Any, run: Path) -> None:
    assert resumable(run, changed(key, value)).version == 3


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("run.seed", 7, "run.seed is 7, the checkpoint was made with 0"),
        ("model.path", "elsewhere", 'model.path is "elsewhere", the checkpoint was made with null'),
        ("model.tiny.hidden", 64, "model.tiny.hidden is 64, the checkpoint was made with 128"),
        ("domains.d1", None, 'domains.d1.env is not set, the checkpoint was made with "emulated"'),
        ("domains.d9", {"env": "frozen_lake"}, 'domains.d9.env is "frozen_lake", the checkpoint was made with not set'),
        ("domains.d0.env", "frozen_lake", 'domains.d0.env is "frozen_lake", the checkpoint was made with "emulated"'),
        ("domains.d0.args.step_error", 0.5, "domains.d0.args is {"),
    ],
)
def test_what_gives_a_checkpoint_its_meaning_must_not_change(key: str, value: Any, message: str, run: Path) -> None:
    with pytest.raises(CheckpointError) as refused:
        resumable(run, changed(key, value))
    assert message in str(refused.value)
    assert f"cannot go on from {run}/checkpoints/step_000003: " in str(refused.value)
    assert "Set them as they were, or start a new run" in str(refused.value)
    assert "\n" not in str(refused.value)


def test_more_iterations_than_the_run_is_to_have_are_refused(run: Path) -> None:
    assert resumable(run, changed("run.iterations", 3)).version == 3
    with pytest.raises(CheckpointError, match=r"has trained 3 iterations, more than run.iterations=2: set run.iter"):
        resumable(run, changed("run.iterations", 2))


def test_settings_that_lie_in_no_checkpoint_are_not_compared() -> None:
    """``model.tiny`` means nothing beside a path."""
    config = changed("model.path", "somewhere")
    assert not [key for key in fixed_settings(config) if key.startswith("model.tiny")]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is damaged"),
        (b'{"schema": 1, "vers', "is damaged"),
        (b"\xff\xfe", "is damaged"),
        (b'{"schema": 1, "version": "three"}', "is damaged"),
        (b'{"schema": 1, "version": 3, "surprise": 1}', "is damaged"),
        (
            b'{"version": 3, "next_group": 4, "cursors": {"d0": 2}, "checkpoint": ""}',
            "has layout 0, this version reads",
        ),
        (b'{"schema": 2}', "has layout 2, this version reads 1"),
    ],
)
def test_a_state_that_cannot_be_read_is_refused(content: bytes, message: str, run: Path) -> None:
    file = state_file(run / "checkpoints" / "step_000003")
    file.write_bytes(content)
    with pytest.raises(CheckpointError, match=message) as refused:
        latest(run)
    assert str(file) in str(refused.value)
    assert f"model.path={run}/checkpoints/step_000003" in str(refused.value)


def test_a_checkpoint_without_its_state_is_refused(run: Path) -> None:
    state_file(run / "checkpoints" / "step_000003").unlink()
    with pytest.raises(CheckpointError, match=r"has no step_000003\.job\.json beside it: move step_000003 away"):
        latest(run)


def test_a_state_without_its_checkpoint_leaves_the_previous_one_in_force(run: Path) -> None:
    file = state_file(run / "checkpoints" / "step_000004")
    file.write_bytes(msgspec.json.encode(JobState(version=4)))
    assert latest(run).version == 3


def test_no_checkpoint_is_an_error_of_its_own(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no complete checkpoint in"):
        latest(tmp_path)


def test_the_state_is_json_that_a_person_can_read(run: Path) -> None:
    content = json.loads(state_file(run / "checkpoints" / "step_000003").read_text())
    assert content["version"] == 3
    assert content["made_with"]["run.seed"] == 0
