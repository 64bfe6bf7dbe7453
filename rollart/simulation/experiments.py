"""Experiments: one configuration varied along axes, each point simulated under several seeds, one row each.

An experiment file has a ``base`` (a simulated run's configuration), axes (``vary``) whose named points set dotted keys,
and comparisons between rows, beside what the paper reports where it does. The experiments of the paper ship with the
package and are found by name. Rows are plain data: the factors that were varied and the numbers of
:class:`~rollart.simulation.measures.Measured`.
"""

from __future__ import annotations

import difflib
import itertools
import math
import multiprocessing
import os
import signal
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import msgspec
from pydantic import Field, model_validator

from rollart.config.base import Section
from rollart.config.load import simulated_config
from rollart.simulation.simulator import SimulationResult, check, check_measurable, simulate

FOLDER = Path(__file__).with_name("library")
"""The experiments that ship with the package."""


_AVERAGED = (
    "step_time_s",
    "throughput_tokens_per_s",
    "rollout_s",
    "train_s",
    "exposed_update_s",
    "wait_s",
    "wasted_token_share",
    "turns",
)
"""Keys of a row that are means over the seeds."""

_NUMBERS = (
    *_AVERAGED,
    *("step_time_s_std", "cost_per_million_tokens", "reward_cold_starts", "simulated_s", "cpu_s", "turns_per_cpu_s"),
)
"""Keys of a row that always are a number."""

_ROW_KEYS = (
    *_NUMBERS,
    *("experiment", "seeds", "idle_share", "outcomes", "staleness", "seconds_by_part"),
    *("reward_utilisation", "reward_wait_s"),
)
"""Keys of a row that no factor can have."""


class Axis(Section):
    """One factor: its points by name, each with the settings that make it."""

    factor: str
    """Name of the factor, a key of the rows."""
    points: dict[str, dict[str, Any]] = Field(min_length=1)
    """Settings by dotted key, by the name of the point."""


class Comparison(Section):
    """A ratio between rows that differ in one factor."""

    label: str
    """What is compared, for the table."""
    field: str
    """Key of the rows."""
    factor: str
    """The factor in which the two rows differ; a row pair for each combination of the others."""
    of: str
    """Point whose value is divided."""
    to: str
    """Point whose value it is divided by."""
    paper: dict[str, str] = {}
    """What the paper reports, by the other factors' points joined by a space."""


class Experiment(Section):
    """See the module docstring."""

    name: str
    """Of the experiment."""
    title: str
    """What it shows, in one line."""
    seeds: list[int] = Field([0, 1, 2], min_length=1)
    """Root seeds; each point is simulated once for each."""
    skipped: int = Field(2, ge=0)
    """Iterations at the start of each run that are not measured."""
    base: dict[str, Any]
    """The configuration."""
    vary: list[Axis] = []
    """The axes; every combination of their points is simulated."""
    compare: list[Comparison] = []
    """Ratios for the table."""

    @model_validator(mode="after")
    def _names_what_there_is(self) -> Experiment:
        if len(set(self.seeds)) < len(self.seeds):
            raise ValueError(f"seeds: {self.seeds} has one twice: leave it out")
        axes = {axis.factor: axis for axis in self.vary}
        if len(axes) < len(self.vary):
            raise ValueError("vary: two axes have the same factor: rename one")
        for factor in axes:
            if factor in _ROW_KEYS:
                raise ValueError(f"vary: a factor cannot be '{factor}', which is a number of the rows: rename it")
        for comparison in self.compare:
            _check_comparison(comparison, axes)
        return self


def _check_comparison(comparison: Comparison, axes: Mapping[str, Axis]) -> None:
    where = f"compare: '{comparison.label}'"
    if comparison.field not in _NUMBERS:
        raise ValueError(f"{where}: a row has no number '{comparison.field}', it has: {', '.join(_NUMBERS)}")
    axis = axes.get(comparison.factor)
    if axis is None:
        raise ValueError(f"{where}: there is no factor '{comparison.factor}', there are: {', '.join(axes) or 'none'}")
    for point in (comparison.of, comparison.to):
        if point not in axis.points:
            raise ValueError(
                f"{where}: factor '{axis.factor}' has no point '{point}', it has: {', '.join(axis.points)}"
            )


class Point(msgspec.Struct, frozen=True):
    """One combination of the axes' points: the factors and the settings."""

    factors: dict[str, str]
    settings: dict[str, Any]

    @property
    def label(self) -> str:
        return "-".join(self.factors.values()) or "run"


Row = dict[str, Any]


def library() -> dict[str, Path]:
    """The shipped experiments by name."""
    return {path.stem: path for path in sorted(FOLDER.glob("*.yaml"))}


def experiment_file(name: str) -> Path:
    """The file of a shipped experiment, or the path itself if there is such a file.

    Raises:
        ValueError: there is neither; the message names the nearest experiment.
    """
    if Path(name).is_file():
        return Path(name)
    shipped = library()
    if name in shipped:
        return shipped[name]
    near = difflib.get_close_matches(name, shipped, n=1)
    hint = f"did you mean '{near[0]}'?" if near else f"experiments: {', '.join(shipped)}"
    raise ValueError(f"there is no file and no experiment '{name}': {hint}")


def points(
    experiment: Experiment, only: Mapping[str, str] | None = None, settings: Mapping[str, Any] | None = None
) -> list[Point]:
    """Every combination of the axes' points, those first that vary last.

    Args:
        experiment: The experiment.
        only: Points by factor, all others of that factor are left out.
        settings: Values by dotted key that hold in every point, whatever the axes set.

    Raises:
        ValueError: ``only`` names a factor or a point that does not exist.
    """
    chosen = dict(only or {})
    axes = []
    for axis in experiment.vary:
        wanted = chosen.pop(axis.factor, None)
        if wanted is not None and wanted not in axis.points:
            raise ValueError(f"factor '{axis.factor}' has no point '{wanted}', it has: {', '.join(axis.points)}")
        names = [wanted] if wanted is not None else list(axis.points)
        axes.append([(axis.factor, name, axis.points[name]) for name in names])
    if chosen:
        factors = ", ".join(axis.factor for axis in experiment.vary) or "none"
        raise ValueError(f"there is no factor '{next(iter(chosen))}', there are: {factors}")
    found = []
    for combination in itertools.product(*axes):
        made: dict[str, Any] = {}
        for _, _, given in combination:
            made |= given
        found.append(Point({factor: name for factor, name, _ in combination}, made | dict(settings or {})))
    return found


def check_points(experiment: Experiment, chosen: Sequence[Point]) -> None:
    """Find out, before anything is simulated, whether every point can be.

    Raises:
        ValueError: a point cannot; the message names it.
    """
    for point in chosen:
        try:
            config = simulated_config(experiment.base, {"run.name": experiment.name, **point.settings})
            check(config)
            check_measurable(config, experiment.skipped)
        except ValueError as error:
            raise ValueError(f"{point.label}: {error}") from error


def run_experiment(
    experiment: Experiment,
    chosen: Sequence[Point],
    keep: Path | None = None,
    jobs: int = 1,
    done: Callable[[Row], None] = lambda row: None,
) -> list[Row]:
    """Simulate points of an experiment; a row each, in order.

    Args:
        experiment: The experiment.
        chosen: Of :func:`points`.
        keep: Folder for the run folders, one for each point and seed; ``None`` keeps none.
        jobs: Processes.
        done: Called with each row as soon as it is there.
    """
    work = [(experiment, point, seed, keep) for point in chosen for seed in experiment.seeds]
    rows: list[Row] = []
    with Workers(jobs) as workers:
        results = workers.results(work)
        for point in chosen:
            row = _row(experiment, point, [next(results) for _ in experiment.seeds])
            rows.append(row)
            done(row)
    return rows


Work = tuple[Experiment, Point, int, Path | None]
"""One simulation: a point of an experiment, a seed, and the folder below which its run folder is kept."""


class Workers:
    """Processes that simulate; with one job there is none, and what is asked for is simulated as it is taken.

    None outlives this one: an error or an interrupt ends what they simulate, and so does the death of this process.

    Args:
        jobs: Processes.
    """

    def __init__(self, jobs: int) -> None:
        self._pool: ProcessPoolExecutor | None = None
        self._others = set(multiprocessing.active_children())
        self._scratch = tempfile.TemporaryDirectory(prefix="rollart-simulate-")
        if jobs > 1:
            self._pool = ProcessPoolExecutor(jobs, get_context("spawn"), _begin_worker, (self._scratch.name,))

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, error: type[BaseException] | None, *details: object) -> None:
        if self._pool is not None:
            if error is not None:
                for process in set(multiprocessing.active_children()) - self._others:
                    process.terminate()
            self._pool.shutdown(cancel_futures=True)
        self._scratch.cleanup()

    def results(self, work: Sequence[Work]) -> Iterator[tuple[SimulationResult, float]]:
        """The results of simulations, at least one, in their order, each with its CPU seconds."""
        return (self._pool.map if self._pool is not None else map)(_simulated, *zip(*work, strict=True))


def _begin_worker(scratch: str) -> None:
    """Leave Ctrl-C to the process that started this one, keep scratch files where it removes them, and end with it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    tempfile.tempdir = scratch
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)  # the queues of the pool never close while another worker has them open


def _simulated(experiment: Experiment, point: Point, seed: int, keep: Path | None) -> tuple[SimulationResult, float]:
    """One point under one seed, and the CPU seconds that it took."""
    try:
        return _simulated_point(experiment, point, seed, keep)
    except RuntimeError as error:
        raise RuntimeError(f"{point.label}, seed {seed}: {error}") from error


def _simulated_point(
    experiment: Experiment, point: Point, seed: int, keep: Path | None
) -> tuple[SimulationResult, float]:
    config = simulated_config(experiment.base, {"run.name": experiment.name, **point.settings, "run.seed": seed})
    began = time.process_time()
    if keep is not None:
        folder = keep / f"{point.label}-{seed}"
        folder.mkdir(parents=True)
        return simulate(config, folder, experiment.skipped), time.process_time() - began
    with tempfile.TemporaryDirectory(prefix="rollart-simulate-") as scratch:
        return simulate(config, Path(scratch), experiment.skipped, log=False), time.process_time() - began


def _row(experiment: Experiment, point: Point, results: Sequence[tuple[SimulationResult, float]]) -> Row:
    """Means over the seeds; the spread of the step time is its standard deviation."""
    config = simulated_config(experiment.base, point.settings)
    measured = [result.measured for result, _ in results]
    row: Row = {"experiment": experiment.name, **point.factors}
    row.setdefault("system", config.run.mode)
    row.setdefault("model", config.simulation.model)
    row["seeds"] = list(experiment.seeds)
    for name in _AVERAGED:
        row[name] = statistics.fmean(getattr(each, name) for each in measured)
    times = [each.step_time_s for each in measured]
    row["step_time_s_std"] = statistics.stdev(times) if len(times) > 1 else 0.0
    row["idle_share"] = _mean_by_key([each.idle_share for each in measured])
    row["outcomes"] = _mean_by_key([each.outcomes for each in measured])
    row["staleness"] = _mean_by_key([{str(k): v for k, v in each.staleness.items()} for each in measured])
    row["seconds_by_part"] = {
        domain: _mean_by_key([each.domains.get(domain, {}) for each in measured])
        for domain in dict.fromkeys(name for each in measured for name in each.domains)
    }
    row |= _rewards([result for result, _ in results])
    trained = statistics.fmean(each.tokens * (1 - each.wasted_token_share) for each in measured)
    cost = statistics.fmean(result.cost for result, _ in results)
    row["cost_per_million_tokens"] = cost / trained * 1e6
    row["simulated_s"] = statistics.fmean(result.seconds for result, _ in results)
    row["cpu_s"] = statistics.fmean(cpu for _, cpu in results)
    row["turns_per_cpu_s"] = sum(each.turns for each in measured) / sum(cpu for _, cpu in results)
    return row


def _rewards(results: Sequence[SimulationResult]) -> Row:
    stats = [each for result in results for each in result.rewards]
    provisioned = sum(each.provisioned_seconds for each in stats)
    calls = sum(each.calls for each in stats)
    return {
        "reward_utilisation": sum(each.busy_seconds for each in stats) / provisioned if provisioned else None,
        "reward_wait_s": sum(each.wait_seconds for each in stats) / calls if calls else None,
        "reward_cold_starts": sum(each.cold_starts for each in stats) / len(results),
    }


def _mean_by_key(values: Sequence[Mapping[str, float]]) -> dict[str, float]:
    keys = dict.fromkeys(key for each in values for key in each)
    return {key: statistics.fmean(each.get(key, 0.0) for each in values) for key in keys}


def compared(experiment: Experiment, rows: Sequence[Row]) -> list[tuple[str, str, float, str]]:
    """The comparisons that the rows allow: label, the other factors' points, our ratio, what the paper reports."""
    found = []
    for comparison in experiment.compare:
        others = [axis.factor for axis in experiment.vary if axis.factor != comparison.factor]
        below = {_key(row, others): row for row in rows if row[comparison.factor] == comparison.to}
        for row in rows:
            key = _key(row, others)
            if row[comparison.factor] == comparison.of and key in below:
                over, under = row[comparison.field], below[key][comparison.field]
                ratio = over / under if under else math.nan
                found.append((comparison.label, key, ratio, comparison.paper.get(key, "")))
    return found


def _key(row: Row, factors: Sequence[str]) -> str:
    return " ".join(str(row[factor]) for factor in factors)
