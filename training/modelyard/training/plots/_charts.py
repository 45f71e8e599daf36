"""Charts with matplotlib's Agg canvas: no display, no pyplot, nothing to close."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from modelyard.errors import ConfigurationError, MissingDependencyError

_SIZE = (7.0, 4.0)
_DPI = 120


def save_curves(
    series: Mapping[str, Sequence[float]],
    path: Path,
    *,
    title: str,
    x_label: str = "epoch",
    first: int = 1,
    together: bool = True,
) -> None:
    """Draws numbers by epoch or step.

    Args:
        series: Values by name; a name's values are at ``first``, ``first + 1``, ...
        path: The PNG to write.
        title: Above the chart.
        x_label: What is counted to the right.
        first: The first number there.
        together: All in one chart; False for a chart each, where their scales differ.

    Raises:
        ConfigurationError: There is nothing to draw.
        MissingDependencyError: matplotlib is not installed.
    """
    if not series or not any(len(values) for values in series.values()):
        raise ConfigurationError(f"{title}: there are no numbers to draw; expected at least one series with a value.")
    figure = _figure(rows=1 if together else len(series))
    charts = figure.subplots(1 if together else len(series), 1, squeeze=False)[:, 0]
    for index, (name, values) in enumerate(series.items()):
        chart = charts[0 if together else index]
        chart.plot(range(first, first + len(values)), values, label=name, marker="." if len(values) <= 50 else "")
        chart.set_xlabel(x_label)
        if not together:
            chart.set_ylabel(name)
        chart.grid(alpha=0.3)
    if together:
        charts[0].legend()
    figure.suptitle(title)
    _save(figure, path)


def save_scatter(
    points: npt.NDArray[Any], classes: npt.NDArray[Any], path: Path, *, title: str, names: Sequence[str]
) -> None:
    """Draws points of the plane, coloured by class.

    Args:
        points: float ``[N, 2]``.
        classes: int ``[N]``.
        path: The PNG to write.
        title: Above the chart.
        names: Names of the classes, in order.

    Raises:
        ConfigurationError: The points are not of the plane.
        MissingDependencyError: matplotlib is not installed.
    """
    if points.ndim != 2 or points.shape[1] != 2:
        raise ConfigurationError(f"{title}: received points of shape {list(points.shape)}; expected [N, 2].")
    figure = _figure(rows=1.5)
    chart = figure.subplots()
    for index, name in enumerate(names):
        chosen = points[classes == index]
        chart.scatter(chosen[:, 0], chosen[:, 1], s=4, alpha=0.6, label=name)
    chart.legend(markerscale=3, fontsize="small", loc="center left", bbox_to_anchor=(1.0, 0.5))
    figure.suptitle(title)
    _save(figure, path)


def save_fit(
    x: npt.NDArray[Any], y: npt.NDArray[Any], path: Path, *, lines: Mapping[str, tuple[float, float]], title: str
) -> None:
    """Draws points and straight lines through them.

    Args:
        x: float ``[N]``.
        y: float ``[N]``.
        path: The PNG to write.
        lines: Slope and intercept by name.
        title: Above the chart.

    Raises:
        MissingDependencyError: matplotlib is not installed.
    """
    figure = _figure()
    chart = figure.subplots()
    chart.scatter(x, y, s=6, alpha=0.4, label="data")
    ends = np.array([x.min(), x.max()])
    for name, (slope, intercept) in lines.items():
        chart.plot(ends, slope * ends + intercept, label=name, linewidth=2)
    chart.legend()
    chart.grid(alpha=0.3)
    figure.suptitle(title)
    _save(figure, path)


def _figure(rows: float = 1) -> Any:
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ModuleNotFoundError as exc:
        if exc.name != "matplotlib":
            raise
        raise MissingDependencyError(package="matplotlib", extra="training", purpose="Drawing a chart") from exc
    figure: Any = Figure(figsize=(_SIZE[0], _SIZE[1] * max(1.0, rows * 0.7)), dpi=_DPI, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _save(figure: Any, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    figure.savefig(partial, format="png")
    partial.replace(path)
