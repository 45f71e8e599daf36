"""``export_task``: from a trained task to a published, verified version."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from modelyard.artifact import AnyFunction, Location, Source, VerificationData
from modelyard.export.publish._api import export
from modelyard.export.publish._options import ExportOptions, ExportReport, Progress, ignore_progress


class ExportableTask(Protocol):
    """What a task must have to be exported; every :class:`modelyard.training.Task` does."""

    @property
    def exported(self) -> Mapping[str, Any]:
        """What holds every variable of the signatures, by name."""

    def signatures(self) -> Mapping[str, AnyFunction]:
        """What to serve, by name."""

    def verification_data(self, count: int) -> VerificationData:
        """Real examples for every signature."""


def export_task(
    task: ExportableTask,
    destination: Location | str,
    *,
    source: Source,
    examples: int = 512,
    data: VerificationData | None = None,
    options: ExportOptions | None = None,
    progress: Progress = ignore_progress,
) -> ExportReport:
    """Exports a trained task: what it serves, verified on its own data.

    Args:
        task: The task, trained or restored.
        destination: ``<repository>/<model>``; the folder's name is the model's.
        source: Where the model came from, for the manifest.
        examples: At most this many verify it.
        data: These instead of the task's own.
        options: None for the defaults.
        progress: Called with an :class:`ExportEvent` as the work goes on.

    Returns:
        What was published, and how every format compared.

    Raises:
        ConfigurationError: As for :func:`export`, and so are the others.
    """
    return export(
        task.exported,
        destination,
        data=task.verification_data(examples) if data is None else data,
        signatures=task.signatures(),
        source=source,
        options=options,
        progress=progress,
    )
