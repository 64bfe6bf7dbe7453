from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from rollart.events import (
    BatchFormed,
    Envelope,
    Evaluated,
    RunStarted,
    TrainStepped,
    TrajectoryEnded,
    TrajectoryScored,
    TrajectoryStarted,
    read_events,
)
from rollart.observability.metrics import HISTORY, MetricsFold, iterations, quantile, scalars
from rollart.types import Outcome, Purpose, TrajectoryId


def test_the_iterations_of_a_run(run_folder: Path) -> None:
    first, second, third = iterations(read_events(run_folder / "events"))

    assert [first.index, second.index, third.index] == [0, 1, 2]
    assert [first.end, second.end, third.end] == [20.0, 30.0, 40.0]
    assert [first.seconds, second.seconds, third.seconds] == [10.0, 10.0, 10.0]
    assert (first.train_seconds, first.wait_seconds, first.trained_tokens) == (2.0, 1.0, 40)
    assert first.protocol_seconds == {"get_batch": 1.0, "suspend": 0.1, "update": 0.3}
    assert [m.staleness for m in (first, second, third)] == [{0: 4}, {1: 4}, {1: 4}]
    assert (first.outcomes, first.tokens, first.wasted_tokens) == ({"trained": 4}, {"trained": 40}, 0)
    assert second.outcomes == {"trained": 4, "failed": 1, "aborted_stale": 2}
    assert (second.wasted_tokens, second.failures) == (13, {"step_timeout": 1})
    assert first.utilisation == {"local/generate": 0.5, "local/train": 0.2}
    assert first.running == {"local/generate": 4.0, "local/environment": 8.0}
    assert first.latency["generate"] == (0.5, 0.5, 0.5)
    lake, math = first.domains["lake"], first.domains["math"]
    assert (lake.finished, lake.reward, lake.success, lake.turns) == (2, 0.0, 0.0, 3.0)
    assert (math.reward, math.success, math.trained_groups, math.trained_share) == (1.0, 1.0, 1, 0.5)
    assert third.alarms == ("entropy fell",)


def test_scalars_are_flat_and_finite(run_folder: Path) -> None:
    values = scalars(iterations(read_events(run_folder / "events"))[1])

    assert values["success/math"] == 1.0
    assert values["outcome/aborted_stale"] == 2.0
    assert values["failed/step_timeout"] == 1.0
    assert values["latency/step_p95"] == 0.2
    assert values["training/loss"] == 0.5
    assert values["staleness/max"] == 1.0
    assert values["time/step"] == 10.0


def test_what_a_resumed_run_repeats_replaces_what_it_lost(make_run: Callable[..., Any]) -> None:
    start = RunStarted("rollart", 1, 0, 3, 1, 1, {"a": 0.5, "b": 0.5}, {})
    run = make_run()
    for t, index, domain in ((10.0, 0, "a"), (20.0, 1, "b"), (30.0, 2, "b")):
        run.at(t, start) if t == 10.0 else None
        run.at(t + 1, BatchFormed(index, {domain: 1}, {0: 1}, 0.0), TrainStepped(index, index + 1, 1.0, 1, {}))
    run.at(100.0, start)
    run.at(101.0, BatchFormed(1, {"a": 1}, {0: 1}, 0.0), TrainStepped(1, 2, 5.0, 1, {}))
    run.close()

    found = iterations(read_events(run.folder / "events"))

    assert [(m.index, m.train_seconds) for m in found] == [(0, 1.0), (1, 5.0), (2, 1.0)]
    assert found[1].domains["a"].trained_share == 1.0


def test_the_fold_of_a_long_run_stays_small() -> None:
    fold = MetricsFold()
    sizes = []
    for index in range(2 * HISTORY + 1):
        events = (Evaluated("a", index, "model", 1, 1.0, 1.0, 0, 0.5), BatchFormed(index, {"a": 1}, {0: 1}, 0.0))
        for event in (*events, TrainStepped(index, index + 1, 0.1, 1, {})):
            list(fold.add(Envelope(0, float(index), event)))
        if index % HISTORY == 0:
            sizes.append(len(pickle.dumps(fold)))

    assert sizes[2] < 1.1 * sizes[1]


def test_evaluation_does_not_enter_iterations(make_run: Callable[..., Any]) -> None:
    run = make_run()
    eval_id = TrajectoryId("a", 0, 0, 0, 0, Purpose.EVAL)
    id = TrajectoryId("a", 0, 0, 0)
    run.at(0.0, RunStarted("sync", 0, 0, 1, 1, 1, {"a": 1.0}, {}))
    run.at(1.0, TrajectoryStarted(eval_id, 1, "h"), TrajectoryStarted(id, 1, "h"))
    run.at(2.0, TrajectoryScored(eval_id, 9.0, True, 1, 1, 1, 0, None, {}))
    run.at(3.0, TrajectoryEnded(eval_id, Outcome.SURPLUS, generated_tokens=7))
    run.at(4.0, TrainStepped(0, 1, 1.0, 1, {}))
    run.close()

    (metrics,) = iterations(read_events(run.folder / "events"))

    assert metrics.domains["a"].finished == 0
    assert metrics.domains["a"].reward is None
    assert metrics.tokens == {}
    assert metrics.seconds == 3.0


@given(st.lists(st.floats(0, 100), min_size=1), st.sampled_from([0.0, 0.5, 0.95, 1.0]))
def test_a_quantile_is_the_smallest_value_that_covers_the_share(values: list[float], q: float) -> None:
    ordered = sorted(values)
    found = quantile(ordered, q)

    assert sum(value <= found for value in ordered) >= q * len(ordered)
    smaller = [value for value in ordered if value < found]
    assert not smaller or len(smaller) < q * len(ordered)
