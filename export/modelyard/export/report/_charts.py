"""Charts as inline SVG. Sizes are user units of a viewBox; the page scales them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from modelyard.export.report._markup import Markup, element
from modelyard.export.report._style import FORMAT_CLASSES


def _svg(width: float, height: float, title: str, *children: str) -> Markup:
    attributes = {"viewBox": f"0 0 {width:g} {height:g}", "role": "img", "aria-label": title}
    return element("svg", attributes, element("title", None, title), *children)


def _text(x: float, y: float, text: str, *, anchor: str = "start", style: str = "") -> Markup:
    attributes: dict[str, object] = {"x": f"{x:g}", "y": f"{y:g}", "text-anchor": anchor}
    return element("text", attributes | ({"class": style} if style else {}), text)


def _rect(x: float, y: float, width: float, height: float, style: str, opacity: float = 1.0) -> Markup:
    attributes: dict[str, object] = {
        "x": f"{x:.2f}",
        "y": f"{y:.2f}",
        "width": f"{width:.2f}",
        "height": f"{height:.2f}",
    }
    attributes["class"] = style
    return element("rect", attributes | ({} if opacity == 1 else {"fill-opacity": f"{opacity:.3f}"}))


def _line(x1: float, y1: float, x2: float, y2: float, style: str = "") -> Markup:
    attributes: dict[str, object] = {"x1": f"{x1:g}", "y1": f"{y1:g}", "x2": f"{x2:g}", "y2": f"{y2:g}"}
    return element("line", attributes | ({"class": style} if style else {}))


def error_histogram(counts: Sequence[int], edges: Sequence[float], *, format: str, limit: float | None) -> Markup:
    """Share of the compared values in each decade of absolute error.

    Args:
        counts: One more than there are edges: below the first, between, above the last.
        edges: Powers of ten, ascending.
        format: Decides the colour.
        limit: The largest error allowed, drawn as a line where it is in range; None where there is no such limit.
    """
    width, height, left, bottom, top = 400.0, 180.0, 8.0, 34.0, 24.0
    total = max(sum(counts), 1)
    step = (width - 2 * left) / len(counts)
    room = height - bottom - top
    highest = max(max(counts) / total, 1e-9)
    parts = []
    for index, count in enumerate(counts):
        share = count / total
        # One value in a million still shows as a line.
        bar = max(share / highest * room, 1.5) if count else 0.0
        x, y = left + index * step, height - bottom - bar
        if count:
            parts.append(_rect(x + 2, y, step - 4, bar, FORMAT_CLASSES.get(format, "c0")))
            label = f"{share:.0%}" if share >= 0.01 else "<1%"
            parts.append(_text(x + step / 2, y - 5, label, anchor="middle"))
    parts.append(_line(left, height - bottom, width - left, height - bottom))
    for index, edge in enumerate(edges, start=1):
        x = left + index * step
        parts.append(_line(x, height - bottom, x, height - bottom + 4))
        parts.append(_text(x, height - bottom + 16, f"1e{round(math.log10(edge))}", anchor="middle", style="axis"))
    parts.append(_text(width / 2, height - 3, "absolute error of one output value", anchor="middle", style="axis"))
    if limit:
        place = left + (1 + math.log10(limit) - math.log10(edges[0])) * step
        if left < place < width - left:
            parts.append(_line(place, top - 12, place, height - bottom, "limit"))
            # Near the right edge the words are on the left of the line.
            right = place > width * 0.75
            x, anchor = (place - 5, "end") if right else (place + 5, "start")
            parts.append(_text(x, top - 4, f"allowed {limit:g}", anchor=anchor, style="limit-text"))
    return _svg(width, height, f"Histogram of absolute errors of {format}", *parts)


def latency_bars(rows: Sequence[tuple[str, str, float]], *, title: str) -> Markup:
    """One horizontal bar for each measurement, with its figure.

    Args:
        rows: Format, label and median time in microseconds.
        title: What is shown, for readers that cannot see it.
    """
    width, line, label, figure = 400.0, 26.0, 206.0, 60.0
    longest = max((value for *_, value in rows), default=1.0)
    parts = []
    for index, (format, text, value) in enumerate(rows):
        y = index * line
        bar = max(value / longest * (width - label - figure), 1.0)
        parts.append(_text(label - 8, y + 17, text, anchor="end"))
        parts.append(_rect(label, y + 5, bar, line - 9, FORMAT_CLASSES.get(format, "c0")))
        parts.append(_text(label + bar + 6, y + 17, microseconds(value)))
    return _svg(width, line * len(rows), title, *parts)


def microseconds(value: float) -> str:
    """A time for people.

    Args:
        value: In microseconds.
    """
    if value < 1000:
        return f"{value:.3g} µs" if value < 100 else f"{value:.0f} µs"
    return f"{value / 1000:.3g} ms"


def confusion_matrix(matrix: npt.NDArray[np.int64], names: Sequence[str], *, title: str) -> Markup:
    """True classes down, predicted classes across; a darker cell holds more of its row.

    Args:
        matrix: Counts, square.
        names: Of the classes.
        title: For readers that cannot see it.
    """
    cell, left, bottom = 30.0, 96.0, 84.0
    size = len(matrix)
    shares: npt.NDArray[Any] = matrix / np.maximum(matrix.sum(axis=1, keepdims=True), 1)
    parts = []
    for row in range(size):
        y = row * cell
        parts.append(_text(left - 6, y + cell / 2 + 4, names[row], anchor="end"))
        for column in range(size):
            x, share, count = left + column * cell, float(shares[row, column]), int(matrix[row, column])
            parts.append(_rect(x + 1, y + 1, cell - 2, cell - 2, "empty"))
            if count:
                parts.append(_rect(x + 1, y + 1, cell - 2, cell - 2, "cell", max(share, 0.06)))
                style = "dense" if share > 0.55 else ""
                parts.append(_text(x + cell / 2, y + cell / 2 + 4, str(count), anchor="middle", style=style))
    for column in range(size):
        x, y = left + column * cell + cell / 2 + 4, size * cell + 10
        turned = element(
            "text",
            {"x": f"{x:g}", "y": f"{y:g}", "text-anchor": "end", "transform": f"rotate(-45 {x:g} {y:g})"},
            names[column],
        )
        parts.append(turned)
    width, height = left + size * cell + 4, size * cell + bottom
    return element("div", {"style": f"max-width: {1.5 * width:g}px"}, _svg(width, height, title, *parts))
