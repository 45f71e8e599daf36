"""Progress of the stages after training: a bar on a terminal, a line per stage anywhere else."""

from __future__ import annotations

import sys
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn


class StageBar:
    """Shows stages one after the other; use it as a context manager."""

    def __init__(self) -> None:
        self._console = Console(file=sys.stderr)
        self._progress = Progress(
            TextColumn("{task.description:<24}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=self._console,
        )
        self._bars: dict[str, TaskID] = {}

    def __enter__(self) -> StageBar:
        if self._console.is_terminal:
            self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._console.is_terminal:
            self._progress.stop()

    def update(self, stage: str, done: int, total: int) -> None:
        """Shows how far a stage is.

        Args:
            stage: Its name.
            done: Units finished.
            total: Units in all.
        """
        if not self._console.is_terminal:
            if done == total:
                self._console.print(f"{stage}: done", highlight=False)
            return
        if stage not in self._bars:
            self._bars[stage] = self._progress.add_task(stage, total=total)
        self._progress.update(self._bars[stage], completed=done, total=total)
