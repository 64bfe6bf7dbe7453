"""The figures of the report: which series of the metrics is drawn how. Called by the report only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from rollart.events import Evaluated
from rollart.observability.charts import Series, line_chart, stacked_bars
from rollart.observability.metrics import IterationMetrics
from rollart.observability.summary import Summary
from rollart.types import Outcome

X = "iteration"
SMOOTH = 5
"""Iterations of the moving average in the noisy curves by domain."""


class Figure(NamedTuple):
    """A chart with its title and one sentence; ``svg`` is empty if there is nothing to draw."""

    title: str
    caption: str
    svg: str


def figures(summary: Summary, series: list[IterationMetrics], evaluations: Sequence[Evaluated]) -> list[Figure]:
    """All figures, in the order of the page."""
    domains = list(summary.domains)
    return [
        _success(domains, series, evaluations),
        _by_domain(
            "Reward by domain",
            f"Mean reward of finished trajectories, moving average over {SMOOTH} iterations.",
            domains,
            series,
            lambda metrics, name: metrics.domains[name].reward,
        ),
        _mix(summary, series),
        Figure(
            "Staleness",
            f"Trajectories of each batch by staleness; the bound is alpha = {summary.alpha}.",
            _bars(series, lambda metrics: {f"staleness {s}": float(n) for s, n in sorted(metrics.staleness.items())}),
        ),
        Figure(
            "Outcomes",
            "Trajectories that ended during each iteration, by outcome.",
            _outcome_bars(series, lambda metrics: metrics.outcomes),
        ),
        Figure(
            "Generated tokens by outcome",
            "Everything that is not trained is waste.",
            _outcome_bars(series, lambda metrics: metrics.tokens),
        ),
        *_time(series),
        *_training(series),
    ]


def _success(domains: list[str], series: list[IterationMetrics], evaluations: Sequence[Evaluated]) -> Figure:
    lines = _domain_lines(domains, series, lambda metrics, name: metrics.domains[name].success)
    for colour, name in enumerate(domains):
        held_out = [
            (float(result.version), result.success)
            for result in evaluations
            if result.domain == name and result.policy == "model" and result.success is not None
        ]
        lines.append(Series(f"{name} (held-out)", held_out, dots=True, colour=colour))
    caption = f"Unshaped success of finished trajectories, moving average over {SMOOTH} iterations; dots are held-out."
    return Figure("Success by domain", caption, line_chart(lines, X, (0.0, 1.0)))


def _by_domain(
    title: str,
    caption: str,
    domains: list[str],
    series: list[IterationMetrics],
    value: Callable[[IterationMetrics, str], float | None],
) -> Figure:
    return Figure(title, caption, line_chart(_domain_lines(domains, series, value), X))


def _domain_lines(
    domains: list[str], series: list[IterationMetrics], value: Callable[[IterationMetrics, str], float | None]
) -> list[Series]:
    lines = []
    for colour, name in enumerate(domains):
        points = [(float(metrics.index), value(metrics, name)) for metrics in series if name in metrics.domains]
        lines.append(Series(name, smoothed([(x, y) for x, y in points if y is not None]), colour=colour))
    return lines


def smoothed(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """The mean of each point with up to ``SMOOTH - 1`` before it."""
    result = []
    for position, (x, _) in enumerate(points):
        window = [y for _, y in points[max(0, position - SMOOTH + 1) : position + 1]]
        result.append((x, sum(window) / len(window)))
    return result


def _mix(summary: Summary, series: list[IterationMetrics]) -> Figure:
    lines = []
    for colour, (name, domain) in enumerate(summary.domains.items()):
        shares = [(float(m.index), m.domains[name].trained_share) for m in series if name in m.domains]
        lines.append(Series(name, [(x, y) for x, y in shares if y is not None], colour=colour))
        if series:
            ends = (float(series[0].index), float(series[-1].index))
            lines.append(Series(name, [(x, domain.configured_share) for x in ends], dots=True, colour=colour))
    caption = "Cumulative share of trained groups; the dots at both ends are the configured shares."
    return Figure("Trained mix", caption, line_chart(lines, X, (0.0, 1.0)))


def _bars(series: list[IterationMetrics], parts: Callable[[IterationMetrics], dict[str, float]]) -> str:
    columns = [(float(metrics.index), parts(metrics)) for metrics in series]
    names = sorted({name for _, column in columns for name in column})
    return stacked_bars(columns, names, X)


def _outcome_bars(series: list[IterationMetrics], parts: Callable[[IterationMetrics], dict[str, int]]) -> str:
    columns = [(float(m.index), {name: float(n) for name, n in parts(m).items()}) for m in series]
    return stacked_bars(columns, [outcome.value for outcome in Outcome], X)


def _lines(
    names: Sequence[str], series: list[IterationMetrics], value: Callable[[IterationMetrics, str], float | None]
) -> list[Series]:
    """A line for each name, over the iterations in which it has a value."""
    lines = []
    for name in names:
        points = [(float(metrics.index), value(metrics, name)) for metrics in series]
        lines.append(Series(name, [(x, y) for x, y in points if y is not None]))
    return lines


def _time(series: list[IterationMetrics]) -> list[Figure]:
    whole = {
        "whole iteration": lambda metrics: metrics.seconds,
        "train_step": lambda metrics: metrics.train_seconds,
        "get_batch wait": lambda metrics: metrics.wait_seconds,
    }
    steps = sorted({step for metrics in series for step in metrics.protocol_seconds} - {"get_batch", "train_step"})
    places = sorted({place for metrics in series for place in metrics.utilisation})
    running = sorted({place for metrics in series for place in metrics.running})
    kinds = sorted({kind for metrics in series for kind in metrics.latency})
    charts = (
        ("Time of an iteration", "Seconds; rollout goes on during train_step.", _parts(whole, series)),
        (
            "Exposed update time",
            "Seconds of each protocol step on the rollout side.",
            _lines(steps, series, lambda metrics, step: metrics.protocol_seconds.get(step)),
        ),
        (
            "Running",
            "Mean of what a worker has running, by pool and role: requests, or environments.",
            _lines(running, series, lambda metrics, place: metrics.running.get(place)),
        ),
        (
            "Latency",
            "95th percentile of a trajectory's seconds in each activity.",
            _lines(kinds, series, lambda metrics, kind: metrics.latency[kind][1] if kind in metrics.latency else None),
        ),
    )
    busy = _lines(places, series, lambda metrics, place: metrics.utilisation.get(place))
    return [
        *(Figure(title, caption, line_chart(lines, X)) for title, caption, lines in charts),
        Figure("Utilisation", "Busy share by pool and role.", line_chart(busy, X, (0.0, 1.0))),
    ]


def _parts(parts: dict[str, Callable[[IterationMetrics], float]], series: list[IterationMetrics]) -> list[Series]:
    return [Series(name, [(float(m.index), value(m)) for m in series]) for name, value in parts.items()]


def _training(series: list[IterationMetrics]) -> list[Figure]:
    """One figure for each of the trainer's metrics."""
    names = sorted({name for metrics in series for name in metrics.training})
    lines = _lines(names, series, lambda metrics, name: metrics.training.get(name))
    return [Figure(line.name, "Reported by the trainer.", line_chart([line], X)) for line in lines]
