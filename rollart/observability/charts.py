"""Small SVG charts for the report: lines, stacked bars and lanes of time. Pure functions to strings.

No script and no font of their own: text takes the page's colour and font, each mark has a ``<title>`` that
browsers show on hover. Coordinates are pixels of a fixed view box that scales with the page.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import NamedTuple

WIDTH, HEIGHT = 640, 240
LEFT, RIGHT, TOP, BOTTOM = 56, 12, 12, 34
PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c6d31", "#7b4173", "#636363", "#ad494a")
"""Colours that stay apart for colour-blind readers (Okabe and Ito's, then darker fillers)."""

LANE_WIDTH, LANE_LEFT, LANE_HEIGHT = 1000, 150, 18
FAINTEST = 0.3
"""Opacity of the shortest mark in a lane, so that a suspend of milliseconds is still seen."""

HIGHEST = 1e15
FINEST = 1e-9
"""Largest value and finest relative range that are drawn."""

Point = tuple[float, float]


class Series(NamedTuple):
    """A named line. ``dots`` draws single points instead of a line."""

    name: str
    points: Sequence[Point]
    dots: bool = False
    colour: int | None = None


class Lane(NamedTuple):
    """A named row of a timeline: intervals with a weight in [0, 1], the share of the time that was busy."""

    name: str
    blocks: Sequence[tuple[float, float, float]]
    colour: int


class _Frame:
    """Maps data to pixels and draws axes."""

    def __init__(self, x: tuple[float, float], y: tuple[float, float]) -> None:
        self.x0, self.x1 = x if x[1] > x[0] else (x[0], x[0] + 1)
        self.ticks_y = nice_ticks(*y)
        self.y0, self.y1 = self.ticks_y[0], self.ticks_y[-1]

    def px(self, x: float) -> float:
        return LEFT + (x - self.x0) / (self.x1 - self.x0) * (WIDTH - LEFT - RIGHT)

    def py(self, y: float) -> float:
        return HEIGHT - BOTTOM - (y - self.y0) / (self.y1 - self.y0) * (HEIGHT - TOP - BOTTOM)

    def axes(self, x_label: str, ticks_x: Sequence[float]) -> list[str]:
        parts = []
        for tick in self.ticks_y:
            y = self.py(tick)
            parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
            parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{number(tick)}</text>')
        for tick in ticks_x:
            if self.x0 <= tick <= self.x1:
                x = self.px(tick)
                parts.append(f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 15}" text-anchor="middle">{number(tick)}</text>')
        middle = (LEFT + WIDTH - RIGHT) / 2
        parts.append(f'<text x="{middle}" y="{HEIGHT - 3}" text-anchor="middle">{escape(x_label)}</text>')
        return parts


def line_chart(series: Sequence[Series], x_label: str, y_range: tuple[float, float] | None = None) -> str:
    """Lines over a common axis; empty if there is nothing to draw.

    Points that are no numbers or beyond all scale are left out.

    Args:
        series: Lines and dots; colours follow the order unless given.
        x_label: What x counts.
        y_range: Fixed range of y, else the data's with 0 where it is near.
    """
    clean = [item._replace(points=[p for p in item.points if abs(p[1]) <= HIGHEST]) for item in series]
    points = [point for item in clean for point in item.points]
    if not points:
        return ""
    xs, ys = [p[0] for p in points], [p[1] for p in points]
    frame = _Frame((min(xs), max(xs)), y_range or _with_zero(min(ys), max(ys)))
    parts = frame.axes(x_label, nice_ticks(frame.x0, frame.x1, 8))
    for position, item in enumerate(clean):
        colour = _colour(position if item.colour is None else item.colour)
        pixels = [(frame.px(x), frame.py(min(max(y, frame.y0), frame.y1))) for x, y in item.points]
        if item.dots or len(pixels) == 1:
            parts += [
                f'<circle cx="{px:.1f}" cy="{py:.1f}" r="3.5" fill="{colour}"><title>{escape(item.name)}: '
                f"{number(y)} at {number(x)}</title></circle>"
                for (px, py), (x, y) in zip(pixels, item.points, strict=True)
            ]
        elif pixels:
            path = " ".join(f"{px:.1f},{py:.1f}" for px, py in pixels)
            parts.append(
                f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.6">'
                f"<title>{escape(item.name)}</title></polyline>"
            )
    named = [(item.name, item.colour if item.colour is not None else n) for n, item in enumerate(clean) if item.points]
    return _svg(parts, WIDTH, HEIGHT) + legend(named)


def stacked_bars(columns: Sequence[tuple[float, Mapping[str, float]]], names: Sequence[str], x_label: str) -> str:
    """One bar for each column, its parts stacked in the order of ``names``. Empty if all parts are 0.

    More columns than pixels are summed up in neighbouring bars.
    """
    used = [name for name in names if any(column.get(name) for _, column in columns)]
    if not used:
        return ""
    bars = _summed(columns, (WIDTH - LEFT - RIGHT) // 3)
    frame = _Frame(
        (bars[0][0] - 0.5, bars[-1][0] + 0.5), (0.0, max(sum(column.get(n, 0.0) for n in used) for _, column in bars))
    )
    step = bars[1][0] - bars[0][0] if len(bars) > 1 else 1.0
    width = max(1.0, (frame.px(frame.x0 + step) - LEFT) * 0.85)
    parts = frame.axes(x_label, nice_ticks(bars[0][0], bars[-1][0], 8) if len(bars) > 1 else [bars[0][0]])
    for x, column in bars:
        base = 0.0
        for name in used:
            value = column.get(name, 0.0)
            if value:
                top = frame.py(base + value)
                parts.append(
                    f'<rect x="{frame.px(x) - width / 2:.1f}" y="{top:.1f}" width="{width:.1f}" '
                    f'height="{frame.py(base) - top:.1f}" fill="{_colour(names.index(name))}">'
                    f"<title>{escape(name)}: {number(value)} at {number(x)}</title></rect>"
                )
                base += value
    return _svg(parts, WIDTH, HEIGHT) + legend([(name, names.index(name)) for name in used])


def _summed(columns: Sequence[tuple[float, Mapping[str, float]]], most: int) -> list[tuple[float, Mapping[str, float]]]:
    stride = -(-len(columns) // most)
    if stride == 1:
        return list(columns)
    result: list[tuple[float, Mapping[str, float]]] = []
    for begin in range(0, len(columns), stride):
        part = columns[begin : begin + stride]
        names = {name for _, column in part for name in column}
        result.append((part[0][0], {name: sum(column.get(name, 0.0) for _, column in part) for name in names}))
    return result


def timeline(lanes: Sequence[Lane], begin: float, end: float) -> str:
    """Rows of time from ``begin`` to ``end`` seconds; the darker, the busier. Empty if no lane has a block."""
    if end <= begin or not any(lane.blocks for lane in lanes):
        return ""
    pixels = LANE_WIDTH - LANE_LEFT
    height = len(lanes) * (LANE_HEIGHT + 4) + 22
    parts = []
    for row, lane in enumerate(lanes):
        y = row * (LANE_HEIGHT + 4)
        parts.append(f'<text x="{LANE_LEFT - 8}" y="{y + 13}" text-anchor="end">{escape(lane.name)}</text>')
        parts.append(f'<rect class="lane" x="{LANE_LEFT}" y="{y}" width="{pixels}" height="{LANE_HEIGHT}"/>')
        for first, last, share in _runs(lane.blocks, begin, end, pixels):
            opacity = max(FAINTEST, share)
            since, until = (begin + edge / pixels * (end - begin) for edge in (first, last))
            parts.append(
                f'<rect x="{LANE_LEFT + first}" y="{y}" width="{last - first}" height="{LANE_HEIGHT}" '
                f'fill="{_colour(lane.colour)}" fill-opacity="{opacity:.2f}"><title>{escape(lane.name)}: '
                f"{share:.0%} busy, {since:.1f} s to {until:.1f} s</title></rect>"
            )
    for tick in nice_ticks(begin, end, 10):
        if begin <= tick <= end:
            x = LANE_LEFT + (tick - begin) / (end - begin) * pixels
            parts.append(f'<text x="{x:.1f}" y="{height - 6}" text-anchor="middle">{number(tick)} s</text>')
    return _svg(parts, LANE_WIDTH, height)


def _runs(
    blocks: Sequence[tuple[float, float, float]], begin: float, end: float, pixels: int
) -> list[tuple[int, int, float]]:
    """Busy share by pixel, neighbouring pixels of about the same share joined: (first, last + 1, share)."""
    scale = pixels / (end - begin)
    cover = [0.0] * pixels
    for since, until, share in blocks:
        left, right = (max(0.0, min(float(pixels), (edge - begin) * scale)) for edge in (since, until))
        if until < begin or since > end or share <= 0:
            continue
        for pixel in range(int(left), min(pixels, max(math.ceil(right), int(left) + 1))):
            cover[pixel] += share * max(0.01, min(right, pixel + 1) - max(left, pixel))
    runs: list[tuple[int, int, float]] = []
    for pixel, value in enumerate(cover):
        share = min(1.0, math.ceil(value * 10) / 10)
        if runs and runs[-1][1] == pixel and runs[-1][2] == share:
            runs[-1] = (runs[-1][0], pixel + 1, share)
        elif share > 0:
            runs.append((pixel, pixel + 1, share))
    return runs


def legend(names: Sequence[tuple[str, int]]) -> str:
    """Coloured names below a chart; nothing for a single one."""
    if len(names) < 2:
        return ""
    seen: dict[str, int] = {}
    for name, colour in names:
        seen.setdefault(name, colour)
    keys = "".join(
        f'<span class="key"><i style="background:{_colour(colour)}"></i>{escape(name)}</span>'
        for name, colour in seen.items()
    )
    return f'<div class="legend">{keys}</div>'


def nice_ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Round numbers from at or below ``low`` to at or above ``high``, about ``most`` of them, at least two."""
    if high <= low:
        high = low + (abs(low) or 1.0)
    high = max(high, low + FINEST * max(1.0, abs(low)))
    raw = (high - low) / max(1, most - 1)
    unit = 10.0 ** math.floor(math.log10(raw))
    step = next(unit * factor for factor in (1, 2, 5, 10) if raw <= unit * factor * 1.0001)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(n * step, 12) for n in range(first, last + 1)]


def number(value: float) -> str:
    """A number for a human: few digits, thousands as k and M."""
    for bound, suffix in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= bound:
            scale = bound if suffix != "k" else 1e3
            return f"{value / scale:.4g}{suffix}"
    return f"{value:.4g}"


def _with_zero(low: float, high: float) -> tuple[float, float]:
    """Extend a range to 0 unless it is narrow and far from it."""
    if low >= 0 and low <= 0.7 * high:
        return 0.0, high
    return (low, 0.0) if high <= 0 and high >= 0.7 * low else (low, high)


def _colour(position: int) -> str:
    return PALETTE[position % len(PALETTE)]


def _svg(parts: Sequence[str], width: int, height: int) -> str:
    return f'<svg viewBox="0 0 {width} {height}" role="img">{"".join(parts)}</svg>'
