from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rollart.events import RunStarted, TrajectoryEnded, TrajectoryScored, TrajectoryStarted, read_events
from rollart.observability.summary import AccountingError, Summary, read_summary, summarise, write_summary
from rollart.types import FailureKind, Outcome, Purpose, TrajectoryId

START = RunStarted("rollart", 1, 0, 3, 2, 2, {"lake": 1.0}, {"local": "CPU"})
LAKE = TrajectoryId("lake", 0, 0, 0)


def _started(id: TrajectoryId) -> TrajectoryStarted:
    return TrajectoryStarted(id, 1, "h")


def _scored(id: TrajectoryId, tokens: int) -> TrajectoryScored:
    return TrajectoryScored(id, 1.0, True, 1, tokens, tokens, 0, None, {})


def test_the_summary_of_a_finished_run(run_folder: Path) -> None:
    summary = write_summary(run_folder)

    written = json.loads((run_folder / "summary.json").read_text())
    selection = written.pop("selection")
    assert {name: (each["scored"]["count"], each["trained"]["count"]) for name, each in selection.items()} == {
        "lake": (6, 6),
        "math": (6, 6),
    }
    assert selection["math"]["unfinished"]["aborted_stale"]["count"] == 2
    assert selection["lake"]["unfinished"]["failed"]["tokens"]["mean"] == 3.0
    assert written == {
        "schema": 1,
        "run": "quick",
        "mode": "rollart",
        "alpha": 1,
        "seed": 7,
        "iterations": 3,
        "train_wall_s": 30.0,
        "domains": {
            "lake": {
                "success_random": 0.1,
                "success_before": 0.15,
                "success_after": 0.65,
                "reward_before": 0.3,
                "reward_after": 1.3,
                "trained_share": 0.5,
                "configured_share": 0.5,
            },
            "math": {
                "success_random": 0.2,
                "success_before": 0.25,
                "success_after": 0.85,
                "reward_before": 0.5,
                "reward_after": 1.7,
                "trained_share": 0.5,
                "configured_share": 0.5,
            },
        },
        "started": 15,
        "in_flight": 0,
        "outcomes": {
            "trained": 12,
            "filtered": 0,
            "withheld": 0,
            "evicted_stale": 0,
            "aborted_stale": 2,
            "surplus": 0,
            "group_lost": 0,
            "abandoned": 0,
            "failed": {"step_timeout": 1},
        },
        "max_staleness": 1,
        "tokens": {"generated": 133, "trained": 120, "wasted": 13},
        "seconds": {"rollout": 18.5, "train": 6.0, "suspend": 0.3, "update": 0.9, "get_batch_wait": 3.0},
    }
    assert read_summary(run_folder) == summary
    assert summary.started == summary.outcomes.total() + summary.in_flight


def test_a_running_run_counts_what_is_in_flight(make_run: Callable[..., Any]) -> None:
    run = make_run()
    run.at(0.0, START, _started(LAKE), _started(TrajectoryId("lake", 0, 0, 1)))
    run.at(2.0, _scored(LAKE, 9))
    run.close()

    summary = summarise("made", read_events(run.folder / "events"))

    assert (summary.started, summary.in_flight) == (2, 2)
    assert summary.tokens == msgspec.convert({"generated": 9, "trained": 0, "wasted": 0}, type(summary.tokens))
    assert summary.seconds.rollout == 2.0
    assert summary.max_staleness is None
    assert summary.domains["lake"].trained_share is None


def test_evaluation_trajectories_are_not_in_the_books(make_run: Callable[..., Any]) -> None:
    run = make_run()
    id = TrajectoryId("lake", 0, 0, 0, 0, Purpose.EVAL)
    run.at(0.0, START, _started(id), _scored(id, 5))
    run.close()

    summary = summarise("made", read_events(run.folder / "events"))

    assert (summary.started, summary.tokens.generated, summary.train_wall_s) == (0, 0, 0.0)


@pytest.mark.parametrize(
    ("events", "message"),
    [
        ([_started(LAKE), _started(LAKE)], "lake/0/0/0/0 was started twice"),
        ([TrajectoryEnded(LAKE, Outcome.TRAINED)], "ended, but was never started"),
        (
            [_started(LAKE), TrajectoryEnded(LAKE, Outcome.TRAINED), TrajectoryEnded(LAKE, Outcome.SURPLUS)],
            "ended twice \\(now as surplus\\)",
        ),
        ([_started(LAKE), TrajectoryEnded(LAKE, Outcome.FAILED)], "without saying what failed"),
        ([_scored(LAKE, 1)], "was scored, but is not in flight"),
    ],
)
def test_books_that_do_not_balance_are_refused(make_run: Callable[..., Any], events: list[Any], message: str) -> None:
    run = make_run()
    run.at(0.0, START, *events)
    run.close()

    with pytest.raises(AccountingError, match=message):
        summarise("made", read_events(run.folder / "events"))


def test_a_resumed_run_counts_the_crash_as_abandoned_and_goes_on(make_run: Callable[..., Any]) -> None:
    first = make_run(wall_time=1000.0)
    first.at(0.0, START, _started(LAKE))
    first.at(4.0, _scored(LAKE, 6))
    first.close()
    with (first.folder / "events" / "control.jsonl").open("ab") as shard:
        shard.write(b'{"n":99,"t":5.0,"e":{"ty')  # torn by the crash
    second = make_run(wall_time=1100.0)
    second.at(0.0, START, _started(LAKE))
    second.at(3.0, TrajectoryEnded(LAKE, Outcome.FAILED, FailureKind.RESET_ERROR, "no", 0))
    second.close()

    events = list(read_events(second.folder / "events"))
    summary = summarise("made", events)

    assert [envelope.t for envelope in events] == [0.0, 0.0, 4.0, 100.0, 100.0, 103.0]
    assert (summary.started, summary.in_flight) == (2, 0)
    assert (summary.outcomes.abandoned, summary.outcomes.failed) == (1, {"reset_error": 1})
    assert summary.tokens.wasted == 6
    assert summary.train_wall_s == 7.0


def test_a_log_without_a_start_is_refused(make_run: Callable[..., Any]) -> None:
    run = make_run()
    run.close()

    with pytest.raises(ValueError, match="no RunStarted"):
        summarise("made", read_events(run.folder / "events"))


def test_a_file_with_an_unknown_field_does_not_follow_the_schema(run_folder: Path) -> None:
    write_summary(run_folder)
    file = run_folder / "summary.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "extra": 1}))

    with pytest.raises(msgspec.ValidationError, match="extra"):
        read_summary(run_folder)


def test_a_summary_of_before_the_selection_was_in_it_can_be_read(run_folder: Path) -> None:
    write_summary(run_folder)
    file = run_folder / "summary.json"
    content = json.loads(file.read_text())
    del content["selection"]
    file.write_text(json.dumps(content))

    assert read_summary(run_folder).selection == {}


def test_every_field_is_documented_and_nothing_else() -> None:
    page = (Path(__file__).parents[2] / "docs" / "summary_json.md").read_text()

    documented = set(re.findall(r"^\| `([^`]+)` \|", page, re.MULTILINE))

    assert documented == set(_fields(msgspec.json.schema(Summary), "#/$defs/Summary", ""))


def _fields(schema: dict[str, Any], ref: str, prefix: str) -> list[str]:
    found = []
    for name, field in schema["$defs"][ref.rsplit("/", 1)[1]]["properties"].items():
        path = f"{prefix}{name}"
        target = field.get("$ref") or field.get("additionalProperties", {}).get("$ref")
        if target is None:
            found.append(path)
        else:
            found += _fields(schema, target, f"{path}.*." if "$ref" not in field else f"{path}.")
    return found
