"""Live progress in the terminal: an event sink that the run feeds and whoever owns the terminal renders.

``emit`` costs microseconds and may be called from the run's thread while another calls ``render``. On a
terminal ``render`` redraws a panel; anywhere else the display is one plain line an iteration and
``render`` does nothing. Made by ``rollart train``, which renders twice a second.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from rollart.events import Alarm, DomainSuspended, Evaluated, Event, TrainStepped, TrajectoryStarted
from rollart.observability.live_state import FINISHED, GENERATING, WAITING, DomainWindow, LiveState
from rollart.types import Outcome

PACE_WINDOW = 20
"""Iterations over which the pace, and so the time left, is estimated."""


class LiveProgress:
    """The display of one run; use as a context manager around it.

    Args:
        console: Where to draw.
        max_train_seconds: The run's time limit, for the time left.
        now: Monotonic seconds.
    """

    def __init__(
        self,
        console: Console,
        max_train_seconds: float | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.state = LiveState()
        self._console = console
        self._limit = max_train_seconds
        self._now = now
        self._began = now()
        self._pace = _Pace(now)
        self._lock = threading.Lock()
        self._live: Live | None = None

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live = Live(console=self._console, auto_refresh=False, transient=True)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self.render()
            self._live.stop()
            self._live = None

    def emit(self, event: Event) -> None:
        """Fold one record; without a terminal, print the line that it completes."""
        with self._lock:
            self.state.emit(event)
            self._pace.emit(event)
            line = None if self._console.is_terminal else self._plain_line(event)
        if line is not None:
            self._console.print(line, highlight=False, markup=False, soft_wrap=True)

    def render(self) -> None:
        """Redraw the panel; nothing without a terminal."""
        if self._live is None:
            return
        with self._lock:
            view = self._view()
        self._live.update(view, refresh=True)

    def seconds_left(self) -> float | None:
        """Estimated seconds to the end of training, from the recent pace and the time limit."""
        if self.state.start is None:
            return None
        return self._pace.left(self.state.start.iterations - self.state.iteration, self._limit)

    def _plain_line(self, event: Event) -> str | None:
        match event:
            case TrainStepped():
                return self._iteration_line(event)
            case Evaluated(domain=domain, policy=policy, version=version):
                who = "random policy" if policy == "random" else f"version {version}"
                return f"held-out {domain}, {who}: success {_cell(event.success)}, reward {_cell(event.reward)}"
            case Alarm(subject=subject, message=message) if not self.state.repeated:
                return f"alarm {subject}: {message}"
            case DomainSuspended(domain=domain, reason=reason):
                return f"alarm: domain {domain} suspended: {reason}"
            case _:
                return None

    def _iteration_line(self, event: TrainStepped) -> str:
        state = self.state
        total = f"/{state.start.iterations}" if state.start else ""
        results = ", ".join(f"{name} {_cell(window.success)}" for name, window in state.domains.items())
        left = self.seconds_left()
        ending = f", {_duration(left)} left" if left is not None else ""
        return (
            f"iteration {event.version}{total}: success {results or '-'}; staleness max {state.max_staleness}; "
            f"train {event.seconds:.2f} s, {event.tokens} tokens{ending}"
        )

    def _view(self) -> RenderableType:
        state = self.state
        if state.start is None:
            doing = f"evaluating: {state.evaluating} instances played" if state.evaluating else "starting"
            return Panel(Text(f"{doing}, {len(state.placed)} workers"), title="rollart", title_align="left")
        parts: list[RenderableType] = [self._head(), self._domains(), self._flow(), self._pools()]
        parts += [Text(message, style="yellow") for message in state.messages]
        return Panel(Group(*parts), title="rollart", title_align="left")

    def _head(self) -> Text:
        state = self.state
        assert state.start is not None
        left = self.seconds_left()
        share = state.iteration / state.start.iterations
        filled = round(30 * share)
        text = Text(f"iteration {state.iteration}/{state.start.iterations} ")
        text.append("━" * filled, style="green").append("─" * (30 - filled), style="dim")
        text.append(f"  {_duration(self._now() - self._began)} elapsed")
        text.append(f", {_duration(left)} left" if left is not None else "")
        text.append(f"  mode {state.start.mode}, alpha {state.start.alpha}", style="dim")
        if state.evaluating:
            text.append(f"  evaluating ({state.evaluating} instances played)", style="cyan")
        return text

    def _domains(self) -> Table:
        table = Table(box=None, pad_edge=False)
        for title in ("domain", "success", "reward", "trained mix", "held-out", "random"):
            table.add_column(title, justify="left" if title == "domain" else "right")
        for name, window in self.state.domains.items():
            table.add_row(*self._domain_row(name, window))
        return table

    def _domain_row(self, name: str, window: DomainWindow) -> tuple[str, ...]:
        held_out = self.state.evaluations.get(name, {})
        model, random = held_out.get("model"), held_out.get("random")
        return (
            f"{name} (suspended)" if window.suspended else name,
            _cell(window.success),
            _cell(window.reward),
            f"{_cell(self.state.trained_share(name))} of {window.configured:.2f}",
            f"{_cell(model.success)} at {model.version}" if model else "-",
            _cell(random.success if random else None),
        )

    def _flow(self) -> Text:
        state = self.state
        live = f"trajectories: {state.live[WAITING]} {WAITING}, {state.live[GENERATING]} {GENERATING}, "
        live += f"{state.live[FINISHED]} {FINISHED}; "
        ended = ", ".join(
            f"{state.outcomes[outcome]} {outcome.value}" for outcome in Outcome if state.outcomes[outcome]
        )
        stale = ", ".join(f"{count} at {staleness}" for staleness, count in sorted(state.staleness.items()))
        return Text(
            f"{live}{ended or 'none ended'}\n"
            f"staleness of the last batch: {stale or '-'}; last protocol step: {state.step or '-'}"
        )

    def _pools(self) -> Table:
        table = Table(box=None, pad_edge=False)
        for title in ("pool", "worker", "role", "busy", "running", "waiting"):
            table.add_column(title, justify="left" if title in ("pool", "worker", "role") else "right")
        for worker, placed in self.state.placed.items():
            numbers = self._activity(worker, placed.role)
            table.add_row(f"{placed.pool} ({placed.hardware_class})", worker, placed.role, *numbers)
        return table

    def _activity(self, worker: str, role: str) -> tuple[str, str, str]:
        """Busy share, running and waiting requests of a worker; the trainer says when it last stepped."""
        busy = self.state.workers.get(worker)
        if busy is not None and role == "environment":
            return "-", str(busy.running), str(busy.waiting)
        if busy is not None:
            return _share(busy.busy, busy.until - busy.since), str(busy.running), str(busy.waiting)
        if role == "train" and self._pace.train_share is not None:
            return f"{self._pace.train_share:.0%}", "-", "-"
        return "-", "-", "-"


class _Pace:
    """How fast iterations go and how long training, evaluation not counted, has lasted.

    Attributes:
        train_share: Share of the last iteration's time that its optimizer step took.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self.train_share: float | None = None
        self._now = now
        self._steps: list[float] = []
        self._training_since: float | None = None
        self._passes: dict[tuple[str, int], float] = {}

    def emit(self, event: Event) -> None:
        if isinstance(event, TrainStepped):
            now = self._now()
            if self._steps and now > self._steps[-1]:
                self.train_share = min(1.0, event.seconds / (now - self._steps[-1]))
            self._steps = [*self._steps[-PACE_WINDOW:], now]
        elif isinstance(event, Evaluated):
            if self._training_since is not None:
                self._passes[event.policy, event.version] = event.seconds  # all domains of a pass say the same
        elif self._training_since is None and isinstance(event, TrajectoryStarted):
            self._training_since = self._now()

    def left(self, iterations: int, limit: float | None) -> float | None:
        """Seconds that ``iterations`` more will take, at most what ``limit`` leaves."""
        estimates = []
        if len(self._steps) >= 2:
            pace = (self._steps[-1] - self._steps[0]) / (len(self._steps) - 1)
            estimates.append(pace * iterations - (self._now() - self._steps[-1]))
        if limit is not None and self._training_since is not None:
            estimates.append(limit - (self._now() - self._training_since - sum(self._passes.values())))
        return max(0.0, min(estimates)) if estimates else None


def _cell(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _share(busy: float, elapsed: float) -> str:
    return "-" if elapsed <= 0 else f"{min(1.0, busy / elapsed):.0%}"


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
