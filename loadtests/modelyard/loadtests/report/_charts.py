"""Charts as SVG, drawn here so that a report is one file that needs nothing else."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass

_WIDTH, _HEIGHT = 760, 260
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 16, 16, 44
#: Height of a legend in a picture of its own.
_LEGEND = 26
#: How lines that are no series look.
LINES = """.grid { stroke: #e8e8e8; } .axis { stroke: #888; } .mark { stroke: #888; stroke-dasharray: 3 3; }
.level { stroke: #b3261e; stroke-dasharray: 6 3; }"""
#: Colours that colour-blind readers can tell apart (Okabe and Ito).
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")


@dataclass(frozen=True, kw_only=True)
class Series:
    """One line of a chart.

    Attributes:
        name: For the legend.
        x: Rising.
        y: As many; NaN leaves a gap.
        points: Draw the points, too.
        steps: Lines from point to point (False) or none (True).
    """

    name: str
    x: Sequence[float]
    y: Sequence[float]
    points: bool = False
    steps: bool = False


def line_chart(
    series: Sequence[Series],
    *,
    x_label: str,
    y_label: str,
    marks: Sequence[tuple[float, str]] = (),
    level: float | None = None,
    log_y: bool = False,
    stacked: bool = False,
) -> str:
    """Draws lines, or areas on top of each other.

    Args:
        series: What to draw.
        x_label: Text below the axis.
        y_label: Text beside the axis.
        marks: Vertical lines: where, and what for.
        level: A horizontal line, such as a limit.
        log_y: A logarithmic axis.
        stacked: Areas, each upon the one before.

    Returns:
        An ``<svg>`` element.
    """
    layers = _stacked(series) if stacked else [(each, [0.0] * len(each.y)) for each in series]
    xs = [x for each, _ in layers for x in each.x]
    ys = [y for each, _ in layers for y in each.y if math.isfinite(y) and (y > 0 or not log_y)]
    ys += [level] if level else []
    if not xs or not ys:
        return '<p class="empty">No data.</p>'
    plot = _Plot(
        x_from=min(0.0, *xs),
        x_to=max(xs) or 1.0,
        y_to=max(ys) * 1.08 or 1.0,
        y_from=min(ys) if log_y else 0.0,
        log_y=log_y,
    )
    parts = [*plot.axes(x_label, y_label)]
    for at, text in marks:
        x = plot.x(at)
        parts.append(
            f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{_HEIGHT - _BOTTOM}" class="mark">'
            f"<title>{html.escape(text)}</title></line>"
        )
    if level is not None:
        y = plot.y(level)
        parts.append(f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}" class="level"/>')
    for index, (each, base) in reversed(list(enumerate(layers))):
        colour = COLOURS[index % len(COLOURS)]
        spots = [(plot.x(x), plot.y(y)) for x, y in zip(each.x, each.y, strict=True) if math.isfinite(y)]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in spots)
        if stacked:
            floor = " ".join(
                f"{plot.x(x):.1f},{plot.y(y):.1f}" for x, y in reversed(list(zip(each.x, base, strict=True)))
            )
            parts.append(f'<polygon points="{path} {floor}" fill="{colour}" fill-opacity="0.75"/>')
        elif not each.steps:
            parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.8"/>')
        if each.points:
            parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in spots]
    legend = "".join(
        f'<span><i style="background:{COLOURS[index % len(COLOURS)]}"></i>{html.escape(each.name)}</span>'
        for index, (each, _) in enumerate(layers)
    )
    name = f"{html.escape(y_label)} by {html.escape(x_label)}"
    svg = f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{name}">{"".join(parts)}</svg>'
    return f'<div class="chart"><div class="legend">{legend}</div>{svg}</div>'


def picture(series: Sequence[Series], chart: str) -> str:
    """A chart as an SVG file of its own, with its legend and colours inside.

    Args:
        series: What is drawn.
        chart: The chart, as :func:`line_chart` made it.
    """
    inner = chart[chart.index(">", chart.index("<svg")) + 1 : chart.index("</svg>")]
    legend = "".join(
        f'<rect x="{_LEFT + index * 80}" y="9" width="11" height="11" fill="{COLOURS[index % len(COLOURS)]}"/>'
        f'<text x="{_LEFT + index * 80 + 16}" y="19">{html.escape(each.name)}</text>'
        for index, each in enumerate(series)
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT + _LEGEND}" '
        f'width="{_WIDTH}" height="{_HEIGHT + _LEGEND}">'
        f"<style>text {{ font: 11px system-ui, sans-serif; fill: #444; }} {LINES}</style>"
        f'<rect width="100%" height="100%" fill="#fff"/>{legend}<g transform="translate(0 {_LEGEND})">{inner}</g>'
        "</svg>\n"
    )


def _stacked(series: Sequence[Series]) -> list[tuple[Series, list[float]]]:
    found, base = [], [0.0] * (len(series[0].x) if series else 0)
    for each in series:
        top = [low + (y if math.isfinite(y) else 0.0) for low, y in zip(base, each.y, strict=True)]
        found.append((Series(name=each.name, x=each.x, y=top), base))
        base = top
    return found


@dataclass(frozen=True, kw_only=True)
class _Plot:
    x_from: float
    x_to: float
    y_from: float
    y_to: float
    log_y: bool

    def x(self, value: float) -> float:
        width = _WIDTH - _LEFT - _RIGHT
        return _LEFT + (value - self.x_from) / (self.x_to - self.x_from or 1) * width

    def y(self, value: float) -> float:
        height = _HEIGHT - _TOP - _BOTTOM
        if self.log_y:
            low, high = math.log10(self.y_from), math.log10(self.y_to)
            share = (math.log10(max(value, self.y_from)) - low) / (high - low or 1)
        else:
            share = value / self.y_to
        return _HEIGHT - _BOTTOM - share * height

    def axes(self, x_label: str, y_label: str) -> list[str]:
        bottom = _HEIGHT - _BOTTOM
        parts = []
        for tick in _log_ticks(self.y_from, self.y_to) if self.log_y else _ticks(0, self.y_to):
            y = self.y(tick)
            parts.append(f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}" class="grid"/>')
            parts.append(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{tick:g}</text>')
        for tick in _ticks(self.x_from, self.x_to):
            x = self.x(tick)
            parts.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{bottom}" y2="{bottom + 4}" class="axis"/>')
            parts.append(f'<text x="{x:.1f}" y="{bottom + 17}" text-anchor="middle">{tick:g}</text>')
        parts.append(f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{bottom}" y2="{bottom}" class="axis"/>')
        parts.append(
            f'<text x="{(_LEFT + _WIDTH) / 2:.0f}" y="{_HEIGHT - 8}" text-anchor="middle">{html.escape(x_label)}</text>'
        )
        middle = (_TOP + bottom) / 2
        parts.append(
            f'<text x="14" y="{middle:.0f}" text-anchor="middle" transform="rotate(-90 14 {middle:.0f})">'
            f"{html.escape(y_label)}</text>"
        )
        return parts


def _ticks(low: float, high: float) -> list[float]:
    raw = (high - low) / 6 or 1
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= raw)
    first = math.ceil(low / step)
    return [round(index * step, 12) for index in range(first, math.floor(high / step) + 1)]


def _log_ticks(low: float, high: float) -> list[float]:
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    found = [factor * 10.0**power for power in powers for factor in (1, 2, 5)]
    return [tick for tick in found if low <= tick <= high]
