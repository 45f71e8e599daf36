"""What a run reports: events while it goes on, a result at its end."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, runtime_checkable

from modelyard.artifact import Location, Source
from modelyard.console import Shown

if TYPE_CHECKING:
    from modelyard.export import ExportReport
    from modelyard.training.run._goal import Goal
    from modelyard.training.user import Task

EndReason = Literal["finished", "interrupted", "terminated", "failed"]


@dataclass(frozen=True, kw_only=True)
class EvalResult:
    """Numbers of one evaluation, and of the training steps since the one before.

    Attributes:
        epoch: Number of the epoch in which it was, from 1.
        step: Training steps done by then, from the start of the run.
        train: Averages of what ``train_step`` returned since the evaluation before, and the metrics that it updated.
        evaluation: The same of ``eval_step``.
        seconds: Time spent in these training steps, in seconds, tracing included.
        eval_seconds: Time spent in evaluation, in seconds.
        examples_per_second: Training examples by training time.
    """

    epoch: int
    step: int
    train: Mapping[str, float]
    evaluation: Mapping[str, float]
    seconds: float
    eval_seconds: float
    examples_per_second: float

    @property
    def metrics(self) -> dict[str, float]:
        """All numbers by the names that goals, tables and manifests use: ``loss``, ..., ``test_loss``, ..."""
        return {**self.train, **{f"test_{name}": value for name, value in self.evaluation.items()}}


@dataclass(frozen=True, kw_only=True)
class Event:
    """What actions receive: one of the classes below.

    Attributes:
        task: Name of the task.
        step: Training steps done since the start of the run.
        epoch: Number of the current epoch, from 1.
        max_steps: Steps that the run will do in all.
        steps_per_epoch: Steps in each epoch; None where the data has no end.
    """

    name: ClassVar[str]

    task: str
    step: int
    epoch: int
    max_steps: int
    steps_per_epoch: int | None

    @property
    def epochs(self) -> int:
        """Number of the last epoch of the run."""
        return 1 if self.steps_per_epoch is None else -(-self.max_steps // self.steps_per_epoch)

    def shown(self) -> Shown:
        """What a progress bar shows of it."""
        return Shown()

    def _bar(self, *, note: str = "", lines: tuple[str, ...] = ()) -> Shown:
        label = "Training" if self.epochs == 1 else f"Epoch {self.epoch}/{self.epochs}"
        return Shown(lines=lines, stage="train", label=label, done=self.step, total=self.max_steps, note=note)


@dataclass(frozen=True, kw_only=True)
class RunStarted(Event):
    """Comes once, before the first step.

    Attributes:
        data: The data that is used, for people.
        history: The evaluations that earlier runs have done.
        notes: Sentences that the user should read: what differs from the run that goes on, and what its checkpoint has
            overruled.
        identity: What the run is made of, as in ``run.json``.
    """

    name: ClassVar[str] = "start"

    data: str = ""
    history: tuple[EvalResult, ...] = ()
    notes: tuple[str, ...] = ()
    identity: Mapping[str, Any] = field(default_factory=dict)

    def shown(self) -> Shown:
        """A line with the data, the notes, and a bar."""
        about = f"Training {self.task}" + (f" on {self.data}" if self.data else "")
        return self._bar(lines=(about + (f"; going on from step {self.step:,}" if self.step else ""), *self.notes))


@dataclass(frozen=True, kw_only=True)
class StepsDone(Event):
    """Comes after each device loop, or every ``log_every_steps``.

    Attributes:
        values: Averages of what ``train_step`` returned since the last evaluation.
        examples_per_second: Training examples by time.
        steps: How many steps they were.
        seconds: The time they took.
    """

    name: ClassVar[str] = "steps"

    values: Mapping[str, float]
    examples_per_second: float
    steps: int
    seconds: float

    def shown(self) -> Shown:
        """The bar, with the values behind it."""
        numbers = [f"{name} {value:.4f}" for name, value in sorted(self.values.items())]
        return self._bar(note="  ".join([*numbers, f"{self.examples_per_second:,.0f}/s"]))


@dataclass(frozen=True, kw_only=True)
class Evaluated(Event):
    """Comes after each evaluation, with its numbers."""

    name: ClassVar[str] = "evaluation"

    result: EvalResult

    def shown(self) -> Shown:
        """A line with its numbers."""
        result = self.result
        numbers = [f"{name} {value:.4f}" for name, value in sorted(result.train.items())]
        numbers += [f"test {name} {value:.4f}" for name, value in sorted(result.evaluation.items())]
        at = f"Step {self.step:,}/{self.max_steps:,}"
        if self.steps_per_epoch is not None and self.step == result.epoch * self.steps_per_epoch:
            at = f"Epoch {result.epoch}/{self.epochs}"
        seconds = f"{result.seconds + result.eval_seconds:.1f} s"
        return Shown(lines=("  ".join([at, *numbers, seconds, f"{result.examples_per_second:,.0f} examples/s"]),))


@dataclass(frozen=True, kw_only=True)
class CheckpointSaved(Event):
    """Comes when a checkpoint is in place, in the folder ``path``, which may be some steps after it was made."""

    name: ClassVar[str] = "checkpoint"

    path: Path


@dataclass(frozen=True, kw_only=True)
class RunEnded(Event):
    """Comes once.

    Attributes:
        reason: ``finished``, ``interrupted`` (Ctrl-C), ``terminated`` (SIGTERM) or ``failed``.
        checkpoint: Folder of the newest checkpoint; None where the run keeps none.
    """

    name: ClassVar[str] = "stop"

    reason: EndReason
    checkpoint: Path | None = None

    def shown(self) -> Shown:
        """Nothing, but a line where the run did not finish."""
        line = f"Training {self.reason} after step {self.step:,}"
        if self.checkpoint is not None and self.reason in ("interrupted", "terminated"):
            line += f"; started again it goes on from {self.checkpoint}"
        return Shown(lines=() if self.reason == "finished" else (line,), ended=True)


class Action(Protocol):
    """What the trainer calls with every event: any callable."""

    def __call__(self, event: Event, /) -> None:
        """Gets one event; what it raises ends the run."""


@runtime_checkable
class Watches(Protocol):
    """An action that needs a number of the evaluation; the trainer makes sure that it is there."""

    @property
    def goal(self) -> Goal:
        """Which number, and what better means."""


@runtime_checkable
class Stops(Protocol):
    """An action that can end the run; the trainer asks it after each evaluation."""

    @property
    def should_stop(self) -> bool:
        """Whether the run shall end."""


@dataclass(frozen=True, kw_only=True)
class TrainResult:
    """The outcome of a run.

    Attributes:
        task: The task, which holds the trained models.
        step: Training steps done in all.
        history: The numbers of every evaluation, those of earlier runs included.
        resumed_from: Step at which this run took over from a checkpoint; None where it started from nothing.
        checkpoint: The newest checkpoint; None where none is kept.
        data: The data it was trained on, for people.
        config: The options that decide the numbers.
        identity: What the run was made of: task and arguments, options, data, package versions, git.
    """

    task: Task
    step: int
    history: tuple[EvalResult, ...]
    resumed_from: int | None
    checkpoint: Path | None
    data: str
    config: Mapping[str, Any]
    identity: Mapping[str, Any] = field(default_factory=dict)

    @property
    def metrics(self) -> dict[str, float]:
        """Numbers of the last evaluation: ``loss``, ``accuracy``, ..., ``test_loss``, ..."""
        return self.history[-1].metrics if self.history else {}

    def _repr_html_(self) -> str:
        """What a notebook shows of a run that is held in a variable: its numbers and its curves."""
        from modelyard.training.run._notebook import curves_html

        rows = "".join(
            f"<tr><td>{html.escape(name)}</td><td>{value:.4f}</td></tr>" for name, value in self.metrics.items()
        )
        at = html.escape(f"{self.task.name}: {self.step:,} steps. Checkpoint: {self.checkpoint}")
        return f"<div>{at}<table>{rows}</table>{curves_html(self.task.name, self.history)}</div>"

    def source(self) -> Source:
        """Where the models come from, for the manifest of an export."""
        return make_source(self.task.name, self.identity, self.config, data=self.data, metrics=self.metrics)

    def export(self, destination: Location | str, **options: Any) -> ExportReport:
        """Exports the trained models, verified, as the next version of a model in a repository.

        Args:
            destination: ``<repository>/<model>``, or its URL in an object store.
            **options: Of :func:`modelyard.export.export_task`, such as ``examples`` and ``options``.

        Raises:
            ExportError: A format does not compute what the models compute.
            MissingDependencyError: The extra ``export`` is not installed.
        """
        from modelyard.export import export_task

        return export_task(self.task, destination, source=self.source(), **options)


def curve_panels(history: Sequence[EvalResult]) -> dict[str, dict[str, list[float]]]:
    """Every number by evaluation, as :func:`modelyard.training.plots.save_curves` takes them."""
    panels: dict[str, dict[str, list[float]]] = {}
    for entry in history:
        for split, values in (("training", entry.train), ("test", entry.evaluation)):
            for name, value in values.items():
                panels.setdefault(name.replace("_", " "), {}).setdefault(split, []).append(value)
    return panels


def make_source(
    task: str,
    identity: Mapping[str, object],
    config: Mapping[str, object],
    *,
    data: str,
    metrics: Mapping[str, float],
) -> Source:
    """Where models come from, for the manifest of an export.

    Args:
        task: Name of the task.
        identity: What the run was made of.
        config: The options that decide the numbers.
        data: The data, for people.
        metrics: Of the run.
    """
    full = {**config, "run": identity} if identity else config
    return Source(task=task, git_commit=str(identity.get("git", "")), data=data, config=full, metrics=metrics)
