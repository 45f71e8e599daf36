"""Line and area charts: from numbers to places on a drawing area of 760 by 290, which ``macros.html`` writes as SVG.

With matplotlib a report would not follow the reader's theme, each chart would take 0.2 s instead of a millisecond (and
the import 0.3 s), and the extra ``loadtests`` would grow by 76 MB, a fifth.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from modelyard.reports._pages import render_page

_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 744, 42, 246

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Series:
    """One line, or one area, of a chart: its name in the legend, rising ``x``, and as many ``y``; NaN is left out."""

    name: str
    x: Sequence[float]
    y: Sequence[float]


@dataclass(frozen=True, kw_only=True)
class Chart:
    """What is drawn, in the units of the drawing area."""

    #: Text below the horizontal axis.
    x_label: str
    #: Text beside the vertical axis.
    y_label: str
    #: Places and texts on the horizontal axis.
    x_ticks: list[tuple[float, str]]
    #: The same of the vertical axis.
    y_ticks: list[tuple[float, str]]
    #: Name, and points ``[n, 2]``.
    lines: list[tuple[str, Floats]]
    #: Whether lines are outlines of areas.
    stacked: bool
    #: Whether each point is marked.
    points: bool
    #: Places and texts of vertical lines.
    marks: list[tuple[float, str]]
    #: Place of a horizontal line; None for none.
    level: float | None


def line_chart(
    series: Sequence[Series],
    *,
    x_label: str,
    y_label: str,
    marks: Sequence[tuple[float, str]] = (),
    level: float | None = None,
    log_y: bool = False,
    stacked: bool = False,
    points: bool = False,
) -> Chart | None:
    """Lines over a common axis, or areas on top of each other; None where there is no finite number to draw.

    ``marks`` are vertical lines: where, and what for. ``level`` is a horizontal line, such as a limit. ``points`` marks
    each point. ``stacked`` areas lie each upon the one before, and all have the same ``x``.
    """
    values = [np.array([each.x, each.y], np.float64) for each in series]
    outlines = _stacked(values) if stacked else [each[:, np.isfinite(each[1])] for each in values]
    shown = [each[:, each[1] > 0] if log_y else each for each in outlines]
    if not any(each.size for each in shown):
        return None
    x, y = np.concatenate(shown, axis=1)
    top = max(float(y.max()), level or 0.0) * 1.08 or 1.0
    across = _Scale(low=min(0.0, float(x.min())), high=float(x.max()) or 1.0, begin=_LEFT, end=_RIGHT)
    up = _Scale(low=float(y.min()) if log_y else 0.0, high=top, begin=_BOTTOM, end=_TOP, log=log_y)
    return Chart(
        x_label=x_label,
        y_label=y_label,
        x_ticks=across.ticks(),
        y_ticks=up.ticks(),
        lines=[
            (each.name, np.stack([across.place(line[0]), up.place(line[1])], axis=1))
            for each, line in zip(series, shown, strict=True)
        ],
        stacked=stacked,
        points=points,
        marks=[(float(across.place(np.float64(at))), text) for at, text in marks],
        level=None if level is None else float(up.place(np.float64(max(level, up.low)))),
    )


def chart_file(chart: Chart, *, extra: str) -> str:
    """A chart as an SVG file of its own, in colours for a white ground; ``extra`` as :func:`render_page` has it."""
    return render_page(__package__, "chart.svg", extra=extra, chart=chart)


def _stacked(values: Sequence[Floats]) -> list[Floats]:
    """The outline of each area: its upper edge, and back along its lower one."""
    found = []
    base = np.zeros(values[0].shape[1]) if values else np.zeros(0)
    for x, y in values:
        top = base + np.nan_to_num(y)
        found.append(np.array([[*x, *x[::-1]], [*top, *base[::-1]]]))
        base = top
    return found


@dataclass(frozen=True, kw_only=True)
class _Scale:
    low: float
    high: float
    begin: float
    end: float
    log: bool = False

    def place(self, values: npt.NDArray[np.float64] | np.float64) -> Floats:
        low, high = (math.log10(self.low), math.log10(self.high)) if self.log else (self.low, self.high)
        share = ((np.log10(values) if self.log else values) - low) / (high - low or 1.0)
        return np.asarray(self.begin + share * (self.end - self.begin))

    def ticks(self) -> list[tuple[float, str]]:
        if self.log:
            powers = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
            values = [factor * 10.0**power for power in powers for factor in (1, 2, 5)]
        else:
            raw = (self.high - self.low) / 6 or 1.0
            power = 10.0 ** math.floor(math.log10(raw))
            step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= raw)
            values = [index * step for index in range(math.ceil(self.low / step), math.floor(self.high / step) + 1)]
        return [(float(self.place(np.float64(each))), f"{each:g}") for each in values if self.low <= each <= self.high]
