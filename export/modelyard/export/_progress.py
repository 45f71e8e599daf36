"""Progress for people: a bar on a terminal, one line for each stage anywhere else."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Self, TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from modelyard.export._options import ExportEvent


class ProgressBar:
    """Shows the events of an export; use it as a context manager and as the ``progress`` callable.

    Args:
        stream: Where to; None is standard error.
    """

    def __init__(self, *, stream: TextIO | None = None) -> None:
        self._console = Console(file=stream or sys.stderr)
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=self._console,
            disable=not self._console.is_terminal,
        )
        self._bars: dict[str, TaskID] = {}

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def __call__(self, event: ExportEvent) -> None:
        """Shows one event.

        Args:
            event: From :func:`modelyard.export.export_model`.
        """
        if event.stage not in self._bars:
            self._bars[event.stage] = self._progress.add_task(event.stage, total=event.total)
            if not self._console.is_terminal:
                self._console.print(f"export: {event.stage}", markup=False, highlight=False)
        self._progress.update(self._bars[event.stage], completed=event.done, total=event.total)
