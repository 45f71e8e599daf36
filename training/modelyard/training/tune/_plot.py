"""A plot of a search."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import FrozenTrial, TrialState

_SHOWN = 6
_COMPLETE, _PRUNED, _BEST = "#1f77b4", "#999999", "#d62728"


def draw_trials(trials: Sequence[FrozenTrial], path: Path, *, metric: str, maximize: bool) -> None:
    """Draws the metric of every trial, epoch by epoch, and over each hyperparameter."""
    from matplotlib.figure import Figure

    names = sorted({name for trial in trials for name in trial.params})[:_SHOWN]
    columns = max(2, len(names))
    figure = Figure(figsize=(4.2 * columns, 7.5), layout="constrained")
    grid = figure.add_gridspec(2, 2 * columns)
    _history(figure.add_subplot(grid[0, :columns]), trials, metric, maximize=maximize)
    _curves(figure.add_subplot(grid[0, columns:]), trials, metric, maximize=maximize)
    for index, name in enumerate(names):
        width = 2 * columns // len(names)
        _over(figure.add_subplot(grid[1, index * width : (index + 1) * width]), trials, name, metric)
    figure.savefig(path, dpi=110)


def _finite(trials: Sequence[FrozenTrial], state: TrialState) -> list[FrozenTrial]:
    return [trial for trial in trials if trial.state == state and trial.value is not None]


def _best(trials: Sequence[FrozenTrial], *, maximize: bool) -> FrozenTrial | None:
    complete = _finite(trials, TrialState.COMPLETE)
    return max(complete, key=lambda trial: (trial.value or 0.0) * (1 if maximize else -1), default=None)


def _history(axes: Any, trials: Sequence[FrozenTrial], metric: str, *, maximize: bool) -> None:
    complete, pruned = _finite(trials, TrialState.COMPLETE), _finite(trials, TrialState.PRUNED)
    axes.plot([t.number for t in complete], [t.value for t in complete], "o", color=_COMPLETE, label="complete")
    axes.plot([t.number for t in pruned], [t.value for t in pruned], "x", color=_PRUNED, label="pruned")
    best = accumulate((trial.value or 0.0 for trial in complete), max if maximize else min)
    axes.step([t.number for t in complete], list(best), where="post", color=_BEST, label="best so far")
    axes.set(title="Trials", xlabel="trial", ylabel=metric)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.legend()


def _curves(axes: Any, trials: Sequence[FrozenTrial], metric: str, *, maximize: bool) -> None:
    best = _best(trials, maximize=maximize)
    for trial in trials:
        points = sorted(trial.intermediate_values.items())
        is_best = best is not None and trial.number == best.number
        color = _BEST if is_best else _COMPLETE if trial.state == TrialState.COMPLETE else _PRUNED
        axes.plot(
            [epoch for epoch, _ in points],
            [value for _, value in points],
            marker=".",
            color=color,
            alpha=1.0 if is_best else 0.6,
            linewidth=2.5 if is_best else 1.0,
            zorder=3 if is_best else 2,
            label=f"trial {trial.number}, the best" if is_best else None,
        )
    axes.set(title="Epoch by epoch", xlabel="epoch", ylabel=metric)
    axes.xaxis.get_major_locator().set_params(integer=True)
    if best is not None:
        axes.legend()


def _over(axes: Any, trials: Sequence[FrozenTrial], name: str, metric: str) -> None:
    for state, style, color in ((TrialState.COMPLETE, "o", _COMPLETE), (TrialState.PRUNED, "x", _PRUNED)):
        chosen = [trial for trial in _finite(trials, state) if name in trial.params]
        distribution = chosen[0].distributions[name] if chosen else None
        values = [trial.params[name] for trial in chosen]
        if isinstance(distribution, CategoricalDistribution):
            # Categories in their own order, as many as there are.
            places = {choice: place for place, choice in enumerate(distribution.choices)}
            axes.set_xticks(range(len(places)), [str(choice) for choice in places])
            values = [places[value] for value in values]
        if isinstance(distribution, (FloatDistribution, IntDistribution)) and distribution.log:
            axes.set_xscale("log")
        axes.plot(values, [trial.value for trial in chosen], style, color=color)
    axes.set(title=name, xlabel=name, ylabel=metric)
