"""``report.html``: one self-contained page of a run, derived from its event log.

Headline table, selection bias, curves by domain, staleness, outcomes, tokens, time, training health, alarms, a
timeline of the workers, and one decoded trajectory of each domain. Made at the end of ``rollart train`` and by
``rollart report``.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from rollart.events import (
    Alarm,
    CheckpointSaved,
    DomainSuspended,
    Envelope,
    Evaluated,
    Fallback,
    RunEnded,
    TrajectoryEnded,
    read_events,
)
from rollart.observability.metrics import IterationMetrics, IterationsFold
from rollart.observability.report_charts import Figure, figures
from rollart.observability.report_timeline import TimelineFold
from rollart.observability.summary import DomainSummary, Summary
from rollart.observability.table import mean
from rollart.observability.trajectory_log import read_all
from rollart.observability.transcript import Decoder, transcript

MOST_NOTES = 200
"""Alarms and notices on the page; the event log has all of them."""


class Note(NamedTuple):
    """Something that a user should look at."""

    t: float
    subject: str
    message: str


class Example(NamedTuple):
    """A decoded trajectory."""

    title: str
    text: str


def write_report(run_folder: Path, summary: Summary) -> Path:
    """Write ``RUN/report.html`` atomically and return its path.

    Raises:
        FileNotFoundError, ValueError: as :func:`rollart.events.read_events`.
        OSError: the file cannot be written.
    """
    page = render(summary, read_events(run_folder / "events"), examples(run_folder))
    target = run_folder / "report.html"
    partial = target.with_suffix(".html.partial")
    partial.write_text(page, encoding="utf-8")
    os.replace(partial, target)
    return target


def render(summary: Summary, events: Iterable[Envelope], shown: list[Example]) -> str:
    """The page of a run.

    Args:
        summary: Its summary.
        events: Its merged log, which is gone through once.
        shown: Decoded trajectories.
    """
    fold = _Fold()
    for envelope in events:
        fold.add(envelope)
    series = fold.iterations.finish()
    loader = PackageLoader("rollart.observability", package_path="")
    template = Environment(loader=loader, autoescape=True, undefined=StrictUndefined).get_template("report.html.jinja")
    return template.render(
        summary=summary,
        ended=fold.ended,
        checkpoint=fold.checkpoint,
        table=_table(summary),
        selection=_selection(summary),
        tiles=_tiles(summary, series),
        figures=_safe(figures(summary, series, fold.evaluations)),
        timelines=_safe(fold.timeline.figures(series)),
        failures=[(kind, count, first) for kind, (count, first) in sorted(fold.failures.items())],
        notes=fold.notes,
        examples=shown,
    )


def _safe(charts: Iterable[Figure]) -> list[tuple[str, str, Markup]]:
    """Figures as the template takes them: our own SVG, whose texts are escaped where they are drawn."""
    return [(figure.title, figure.caption, Markup(figure.svg)) for figure in charts if figure.svg]


def _table(summary: Summary) -> list[tuple[str, ...]]:
    """Rows of domain, random, before, after, gain, trained share, configured share."""
    rows: list[tuple[str, ...]] = [
        (name, *_results(domain), _number(domain.trained_share), _number(domain.configured_share))
        for name, domain in summary.domains.items()
    ]
    if len(rows) > 1:
        names = ("success_random", "success_before", "success_after")
        random, before, after = (mean([getattr(d, name) for d in summary.domains.values()]) for name in names)
        rows.append(("mean", _number(random), _number(before), _number(after), _gain(before, after), "", ""))
    return rows


def _selection(summary: Summary) -> list[tuple[str, ...]]:
    """Rows of domain, scored, trained, mean tokens and reward of scored and trained, and the differences.

    Of what was never scored: its number, and the mean of the tokens it had generated.
    """
    rows: list[tuple[str, ...]] = []
    for name, domain in summary.selection.items():
        scored, trained, unfinished = domain.scored, domain.trained, list(domain.unfinished.values())
        count = sum(each.count for each in unfinished)
        tokens = sum(each.count * (each.tokens.mean or 0.0) for each in unfinished)
        rows.append(
            (
                *(name, str(scored.count), str(trained.count)),
                *(_rounded(scored.tokens.mean), _rounded(trained.tokens.mean), _signed(domain.length_difference)),
                *(_number(scored.reward.mean), _number(trained.reward.mean), _signed(domain.reward_difference)),
                *(str(count), f"{tokens / count:.1f}" if count else "-"),
            )
        )
    return rows


def _rounded(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def _signed(value: float | None) -> str:
    return "-" if value is None else f"{value:+.2f}"


def _results(domain: DomainSummary) -> tuple[str, str, str, str]:
    before, after = domain.success_before, domain.success_after
    return _number(domain.success_random), _number(before), _number(after), _gain(before, after)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _gain(before: float | None, after: float | None) -> str:
    return "-" if before is None or after is None else f"{after - before:+.3f}"


def _tiles(summary: Summary, series: list[IterationMetrics]) -> list[tuple[str, str]]:
    """The key numbers: label and value."""
    outcomes, tokens = summary.outcomes, summary.tokens
    ended = outcomes.total()
    tiles = [
        ("iterations", str(summary.iterations)),
        ("training time", f"{summary.train_wall_s:.1f} s"),
        ("trajectories started", str(summary.started)),
        ("of the ended, trained", f"{outcomes.trained / ended:.1%}" if ended else "-"),
        ("generated tokens", f"{tokens.generated:,}"),
        ("of them wasted", f"{tokens.wasted / tokens.generated:.1%}" if tokens.generated else "-"),
        ("highest staleness", "-" if summary.max_staleness is None else str(summary.max_staleness)),
    ]
    places = sorted({place for metrics in series for place in metrics.utilisation})
    for place in places:
        busy = mean([metrics.utilisation.get(place, 0.0) for metrics in series])
        tiles.append((f"{place} busy", f"{busy or 0.0:.0%}"))
    return tiles


class _Fold:
    """What the page shows, from one pass over the log.

    Attributes:
        iterations, timeline: The parts that fold by themselves.
        ended: Why the run ended.
        checkpoint: Path of the newest one.
        evaluations: All held-out results.
        failures: By kind their number and the first message.
        notes: The newest alarms and notices.
    """

    def __init__(self) -> None:
        self.iterations = IterationsFold()
        self.timeline = TimelineFold()
        self.ended = "still running, or ended without a word"
        self.checkpoint: str | None = None
        self.evaluations: list[Evaluated] = []
        self.failures: dict[str, tuple[int, str]] = {}
        self.notes: deque[Note] = deque(maxlen=MOST_NOTES)

    def add(self, envelope: Envelope) -> None:
        self.iterations.add(envelope)
        self.timeline.add(envelope)
        match envelope.e:
            case RunEnded(reason=reason):
                self.ended = reason
            case CheckpointSaved(path=path):
                self.checkpoint = path
            case Evaluated() as result:
                self.evaluations.append(result)
            case TrajectoryEnded(failure=failure, message=message) if failure is not None:
                count, first = self.failures.get(failure.value, (0, message))
                self.failures[failure.value] = (count + 1, first)
            case Alarm(subject=subject, message=message):
                self.notes.append(Note(envelope.t, subject, message))
            case DomainSuspended(domain=domain, reason=reason):
                self.notes.append(Note(envelope.t, f"domain {domain} suspended", reason))
            case Fallback(subject=subject, wanted=wanted, taken=taken, reason=reason):
                self.notes.append(Note(envelope.t, f"{subject} fell back", f"wanted {wanted}, took {taken}: {reason}"))
            case _:
                pass


def examples(run_folder: Path) -> list[Example]:
    """The last kept trajectory of each domain, decoded; none if the run kept none."""
    last: dict[str, Example] = {}
    decoder = Decoder.of_run(run_folder)
    try:
        newest = {trajectory.id.domain: (batch, trajectory) for batch, trajectory in read_all(run_folder)}
    except FileNotFoundError:
        return []
    for domain, (batch, trajectory) in sorted(newest.items()):
        last[domain] = Example(f"{domain}, batch {batch}", "\n".join(transcript(batch, trajectory, decoder)))
    return list(last.values())
