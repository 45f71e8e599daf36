"""A table of evaluations, for spreadsheets."""

from __future__ import annotations

import csv
import io
from pathlib import Path

from modelyard.errors import TrainingError
from modelyard.training.run import EvalResult, Evaluated, Event, RunStarted, replace_file


class CsvLog:
    """Action that keeps a table with one row for each evaluation, those of earlier runs included.

    The columns are ``epoch``, ``step``, the averages of ``train_step``, those of ``eval_step`` as ``test_<name>``,
    ``seconds``, ``eval_seconds`` and ``examples_per_second``. The file is complete at any time: each new version
    replaces the old one.

    Args:
        path: The file; its folder is made when absent.
    """

    def __init__(self, path: Path | str) -> None:
        self._path = Path(path)
        self._history: tuple[EvalResult, ...] = ()

    def __call__(self, event: Event) -> None:
        """Writes the table anew after an evaluation.

        Raises:
            TrainingError: The file cannot be written.
        """
        if isinstance(event, RunStarted):
            self._history = event.history
        elif isinstance(event, Evaluated):
            self._history = (*self._history, event.result)
            self._write()

    def _write(self) -> None:
        rows = [_row(result) for result in self._history]
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, fieldnames=list(dict.fromkeys(name for row in rows for name in row)))
        writer.writeheader()
        writer.writerows(rows)
        replace_file(self._path, text.getvalue(), error=TrainingError)


def _row(result: EvalResult) -> dict[str, float]:
    return {
        "epoch": result.epoch,
        "step": result.step,
        **result.metrics,
        "seconds": result.seconds,
        "eval_seconds": result.eval_seconds,
        "examples_per_second": result.examples_per_second,
    }
