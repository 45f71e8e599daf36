"""What a run reports: events while it goes on, a result at its end."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from modelyard.artifact import Location

EventKind = Literal["start", "steps", "epoch", "checkpoint", "stop"]


@dataclass(frozen=True, kw_only=True)
class EpochResult:
    """Numbers of one whole epoch.

    Attributes:
        epoch: Number of the epoch, from 1.
        step: Training steps done at its end, from the start of the run.
        train: Averages of what ``train_step`` returned, and the values of the metrics that it updated.
        evaluation: The same of ``eval_step``, after the epoch.
        seconds: Time spent in training steps, in seconds, tracing included.
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


@dataclass(frozen=True, kw_only=True)
class Event:
    """What actions receive.

    ``start`` comes once, before the first step; ``steps`` after each device
    loop; ``epoch`` after each evaluation, with ``result``; ``checkpoint`` when
    one is in place, with ``path``, which may be some steps after it was made;
    ``stop`` once, whatever ended the run: its ``message`` is ``finished``,
    ``interrupted`` (Ctrl-C), ``terminated`` (SIGTERM) or ``failed``.

    Attributes:
        kind: What happened.
        task: Name of the task.
        step: Training steps done since the start of the run.
        epoch: Number of the current epoch, from 1.
        epochs: Epochs the run will do in all.
        steps_per_epoch: Steps in each epoch.
        values: For ``steps``, the averages over the epoch so far.
        examples_per_second: For ``steps``, training examples by time.
        result: For ``epoch``, the numbers of the epoch.
        path: For ``checkpoint``, its folder.
        message: For ``start`` the data that is used; for ``stop`` why.
        steps: For ``steps``, how many they were.
        seconds: For ``steps``, the time they took.
        history: For ``start``, the epochs that earlier runs have done.
        notes: For ``start``, sentences that the user should read: what a
            checkpoint has overruled.
    """

    kind: EventKind
    task: str
    step: int
    epoch: int
    epochs: int
    steps_per_epoch: int
    values: Mapping[str, float] = field(default_factory=dict)
    examples_per_second: float | None = None
    result: EpochResult | None = None
    path: Path | None = None
    message: str = ""
    steps: int = 0
    seconds: float = 0.0
    history: tuple[EpochResult, ...] = ()
    notes: tuple[str, ...] = ()


#: One that has an attribute ``should_stop`` ends the run after an epoch when that is true.
Action = Callable[[Event], None]


@dataclass(frozen=True, kw_only=True)
class TrainResult:
    """The outcome of a run.

    Attributes:
        task: Name of the task.
        step: Training steps done in all.
        epochs: The numbers of every epoch, those of earlier runs included.
        resumed_from: Step at which this run took over from a checkpoint; None
            where it started from nothing.
        checkpoint: The newest checkpoint; None where none is kept.
        data: The data it was trained on, for people.
        config: The options that decide the numbers.
        trained: The task, with the trained model; None where nobody gave one.
    """

    task: str
    step: int
    epochs: tuple[EpochResult, ...]
    resumed_from: int | None
    checkpoint: Path | None
    data: str
    config: Mapping[str, Any]
    trained: Any = field(default=None, repr=False, compare=False)

    def export(self, destination: Location | str, **options: Any) -> Any:
        """Exports the trained model: verified in every format, published as the next version.

        Args:
            destination: ``<repository>/<model>``.
            **options: Of :func:`modelyard.export.export_task`.

        Returns:
            What was published, a :class:`modelyard.export.ExportReport`.

        Raises:
            ExportError: As for :func:`modelyard.export.export_task`, and so are the others.
            MissingDependencyError: The extra ``export`` is not installed.
        """
        # By name, when it is called: neither room needs the other to be there.
        return importlib.import_module("modelyard.export").export_task(self.trained, destination, run=self, **options)

    @property
    def metrics(self) -> dict[str, float]:
        """Numbers of the last epoch: ``loss``, ``accuracy``, ..., and ``test_<name>`` for those of the evaluation."""
        if not self.epochs:
            return {}
        last = self.epochs[-1]
        return {**last.train, **{f"test_{name}": value for name, value in last.evaluation.items()}}
