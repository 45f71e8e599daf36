"""Charts with matplotlib, without pyplot: no display, nothing to close."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from modelyard.errors import ConfigurationError, TrainingError
from modelyard.lazy import needs_extra
from modelyard.training.run import replace_file

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SIZE = (7.0, 4.0)
_DPI = 120
#: So many values get a dot each.
_FEW = 50


def save_curves(
    panels: Mapping[str, Mapping[str, Sequence[float]]],
    path: Path,
    *,
    title: str,
    x_label: str = "epoch",
    first: int = 1,
) -> None:
    """Draws numbers by epoch or step, in one chart below the other."""
    if not any(len(values) for series in panels.values() for values in series.values()):
        raise ConfigurationError(f"{title}: there are no numbers to draw; expected at least one series with a value.")
    figure = _figure(rows=len(panels))
    charts = figure.subplots(len(panels), 1, squeeze=False)[:, 0]
    for chart, (label, series) in zip(charts, panels.items(), strict=True):
        for name, values in series.items():
            marker = "." if len(values) <= _FEW else ""
            chart.plot(range(first, first + len(values)), values, label=name, marker=marker)
        chart.set_ylabel(label)
        chart.set_xlabel(x_label)
        # There is no epoch 1.25.
        chart.xaxis.get_major_locator().set_params(integer=True, min_n_ticks=1)
        chart.grid(alpha=0.3)
        if len(series) > 1:
            chart.legend()
    figure.suptitle(title)
    _save(figure, path)


def save_scatter(
    points: npt.NDArray[Any], classes: npt.NDArray[Any], path: Path, *, title: str, names: Sequence[str]
) -> None:
    """Draws points of the plane, float ``[N, 2]``, coloured by class, int ``[N]``, with names for the classes."""
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


def save_embedding(
    vectors: npt.NDArray[Any], classes: npt.NDArray[Any], path: Path, *, title: str, names: Sequence[str]
) -> None:
    """Draws vectors, float ``[N, D]``, in the plane of their first two principal components, coloured by class."""
    centred = vectors - vectors.mean(axis=0)
    _, deviations, axes = np.linalg.svd(centred, full_matrices=False)
    share = np.square(deviations[:2]).sum() / np.square(deviations).sum()
    title = f"{title}: two principal components, {share:.0%} of the variance"
    save_scatter(centred @ axes[:2].T, classes, path, title=title, names=names)


def save_fit(
    x: npt.NDArray[Any],
    y: npt.NDArray[Any],
    path: Path,
    *,
    lines: Mapping[str, tuple[npt.NDArray[Any], npt.NDArray[Any]]],
    title: str,
) -> None:
    """Draws points, and lines through them: by name, the x and the y of the line's own points."""
    figure = _figure()
    chart = figure.subplots()
    chart.scatter(x, y, s=6, alpha=0.4, label="data")
    for name, line in lines.items():
        chart.plot(*line, label=name, linewidth=2)
    chart.legend()
    chart.grid(alpha=0.3)
    figure.suptitle(title)
    _save(figure, path)


def _figure(rows: float = 1) -> Figure:
    with needs_extra("training", "matplotlib", purpose="Drawing a chart"):
        from matplotlib.figure import Figure
    return Figure(figsize=(_SIZE[0], _SIZE[1] * max(1.0, rows * 0.7)), dpi=_DPI, layout="constrained")


def _save(figure: Figure, path: Path) -> None:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    replace_file(path, buffer.getvalue(), error=TrainingError)
