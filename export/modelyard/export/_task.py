"""``export_task``: from a trained task to a published, verified version."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from modelyard.artifact import AnyFunction, Location, Source, VerificationData, locate
from modelyard.export._git import git_commit
from modelyard.export._model import export_model
from modelyard.export._options import ExportOptions, ExportReport, Progress, ignore_progress


class ExportableTask(Protocol):
    """What a task must have to be exported; every :class:`modelyard.training.Task` does."""

    @property
    def exported(self) -> Mapping[str, Any]:
        """What holds every variable of the signatures, by name."""

    def signatures(self) -> Mapping[str, AnyFunction]:
        """What to serve, by name."""

    def verification_data(self, count: int) -> VerificationData:
        """Real examples for every signature."""


class TrainingRun(Protocol):
    """What a manifest says of a training run; a :class:`modelyard.training.TrainResult` has it."""

    @property
    def task(self) -> str:
        """Name of the task."""

    @property
    def data(self) -> str:
        """What it was trained on."""

    @property
    def config(self) -> Mapping[str, Any]:
        """The options that decide the numbers."""

    @property
    def metrics(self) -> Mapping[str, float]:
        """The numbers of the last epoch."""


def export_task(
    task: ExportableTask,
    destination: Location | str,
    *,
    run: TrainingRun,
    examples: int = 512,
    data: VerificationData | None = None,
    options: ExportOptions | None = None,
    progress: Progress = ignore_progress,
) -> ExportReport:
    """Exports a trained task: what it serves, verified on its own data.

    Args:
        task: The task, trained or restored.
        destination: ``<repository>/<model>``; the folder's name is the model's.
        run: Where the model came from, for the manifest.
        examples: At most this many verify it.
        data: These instead of the task's own.
        options: None for the defaults.
        progress: Called with an :class:`ExportEvent` as the work goes on.

    Returns:
        What was published, and how every format compared.

    Raises:
        ConfigurationError: As for :func:`export_model`, and so are the others.
    """
    return export_model(
        task.exported,
        task.signatures(),
        task.verification_data(examples) if data is None else data,
        model_dir=locate(str(destination)),
        source=Source(
            task=run.task,
            git_commit=git_commit(_file_of(type(task))),
            data=run.data,
            config=dict(run.config),
            metrics=dict(run.metrics),
        ),
        options=options,
        progress=progress,
    )


def _file_of(kind: type) -> Path:
    try:
        return Path(inspect.getfile(kind))
    except (OSError, TypeError):
        # Made in a notebook, or at a prompt.
        return Path.cwd()
