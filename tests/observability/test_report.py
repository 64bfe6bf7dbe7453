from __future__ import annotations

import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from rollart.events import Alarm, Fallback, RunStarted, TrajectoryEnded, TrajectoryStarted
from rollart.observability.charts import Lane, Series, line_chart, nice_ticks, number, stacked_bars, timeline
from rollart.observability.report import write_report
from rollart.observability.summary import write_summary
from rollart.types import FailureKind, Outcome, TrajectoryId


class _Page(HTMLParser):
    """Collects tags, and checks that they nest."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self._open: list[str] = []
        self.feed(text)
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._open.append(tag)
        if tag == "meta":
            self._open.pop()

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag


def test_the_page_is_one_self_contained_file(run_folder: Path) -> None:
    path = write_report(run_folder, write_summary(run_folder))
    text = path.read_text()
    page = _Page(text)

    assert path == run_folder / "report.html"
    assert not {"script", "link", "img", "iframe"} & {tag for tag, _ in page.tags}
    assert not re.search(r"(src|href)=|url\(|https?://", text)
    assert sum(tag == "svg" for tag, _ in page.tags) >= 13
    for part in (
        "<td>lake</td><td>0.100</td><td>0.150</td><td>0.650</td>",
        '<td class="gain">+0.500</td>',
        "<h2>Selection</h2>",
        "<td>math</td><td>6</td><td>6</td><td>10.0</td><td>10.0</td><td>+0.00</td>",
        "<td>mean</td>",
        "finished",
        "entropy fell",
        "step_timeout",
        "lake: step hung",
        "generate-0 (local)",
        "The whole run",
        "get_batch wait",
    ):
        assert part in text, part


def test_a_run_that_has_only_started_has_a_page(make_run: Callable[..., Any]) -> None:
    run = make_run()
    run.at(0.0, RunStarted("rollart", 1, 0, 3, 2, 2, {"lake": 1.0}, {}))
    run.close()

    text = write_report(run.folder, write_summary(run.folder)).read_text()

    _Page(text)
    assert "still running" in text


def test_texts_of_the_run_are_escaped(make_run: Callable[..., Any]) -> None:
    evil = "<script>alert(1)</script>"
    run = make_run()
    id = TrajectoryId("lake", 0, 0, 0)
    run.at(
        0.0,
        RunStarted("rollart", 1, 0, 3, 2, 2, {evil: 1.0}, {}),
        Alarm(evil, evil),
        Fallback(evil, evil, evil, evil),
        TrajectoryStarted(id, 0, "h"),
        TrajectoryEnded(id, Outcome.FAILED, FailureKind.STEP_ERROR, evil),
    )
    run.close()

    text = write_report(run.folder, write_summary(run.folder)).read_text()

    assert "<script" not in text
    assert "&lt;script&gt;" in text


POINTS = st.lists(st.tuples(st.floats(-1e6, 1e6), st.floats(allow_nan=True, allow_infinity=True)), max_size=30)


@given(POINTS)
def test_a_line_chart_stays_inside_its_box(points: list[tuple[float, float]]) -> None:
    svg = line_chart([Series("a", sorted(points, key=lambda p: p[0]))], "x")
    for path in re.findall(r'points="([^"]+)"', svg):
        for pair in path.split():
            x, y = map(float, pair.split(","))
            assert 0 <= x <= 640
            assert 0 <= y <= 240


@given(st.floats(-1e9, 1e9), st.floats(-1e9, 1e9), st.integers(2, 10))
def test_ticks_are_few_and_cover_the_range(low: float, high: float, most: int) -> None:
    ticks = nice_ticks(low, high, most)

    assert 2 <= len(ticks) <= most + 2
    assert ticks == sorted(ticks)
    slack = 1e-6 * (ticks[1] - ticks[0]) + 1e-9
    assert ticks[0] <= low + slack
    assert ticks[-1] >= high - slack or high < low


def test_bars_stack_to_the_sum_of_their_parts() -> None:
    svg = stacked_bars([(0.0, {"a": 1.0, "b": 3.0}), (1.0, {"a": 2.0})], ["a", "b", "c"], "x")
    heights = [float(height) for height in re.findall(r'height="([\d.]+)"', svg)]

    assert len(heights) == 3
    assert abs(heights[1] - 3 * heights[0]) < 0.3
    assert ">c<" not in svg
    assert stacked_bars([(0.0, {"a": 0.0})], ["a"], "x") == ""


def test_many_bars_are_summed_up() -> None:
    columns = [(float(x), {"a": 1.0}) for x in range(5000)]
    svg = stacked_bars(columns, ["a"], "x")

    assert svg.count("<rect") < 200
    assert ">30<" in svg


def test_a_timeline_shades_by_busy_share_and_shows_short_marks() -> None:
    lanes = [Lane("worker", [(0.0, 50.0, 1.0), (50.0, 100.0, 0.5)], 0), Lane("mark", [(10.0, 10.001, 1.0)], 1)]
    svg = timeline(lanes, 0.0, 100.0)

    shares = re.findall(r'width="(\d+)"[^>]*fill-opacity="([\d.]+)"', svg)
    assert shares == [("425", "1.00"), ("425", "0.50"), ("1", "0.30")]
    assert timeline([Lane("idle", [], 0)], 0.0, 100.0) == ""
    assert timeline(lanes, 5.0, 5.0) == ""


def test_numbers_are_short() -> None:
    assert [number(v) for v in (0.0, 0.12345, 1234.0, 12345.0, 2.5e6, -3e9)] == [
        "0",
        "0.1235",
        "1234",
        "12.35k",
        "2.5M",
        "-3G",
    ]
