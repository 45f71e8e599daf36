"""Progress for people: a bar on a terminal, a few lines anywhere else."""

from __future__ import annotations

import sys
import time
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from modelyard.training._results import EpochResult, Event

_SECONDS_BETWEEN_LINES = 15.0


class ProgressBar:
    """Action that shows how far a run is.

    Args:
        stream: Where to; None is standard error. On a terminal it shows a bar
            and one line for each epoch, otherwise lines only, and between
            epochs at most one in fifteen seconds.
    """

    def __init__(self, *, stream: TextIO | None = None) -> None:
        self._stream = stream
        self._console = Console(file=stream or sys.stderr)
        self._progress: Progress | None = None
        self._bar: TaskID | None = None
        self._last_line = 0.0

    def __call__(self, event: Event) -> None:
        """Shows one event.

        Args:
            event: From the trainer.
        """
        if event.kind == "start":
            self._start(event)
        elif event.kind == "steps":
            self._steps(event)
        elif event.kind == "epoch" and event.result is not None:
            self._line(describe_epoch(event.result, epochs=event.epochs))
        elif event.kind == "stop":
            self._stop(event)

    def _start(self, event: Event) -> None:
        self._console = Console(file=self._stream or sys.stderr)
        self._last_line = time.monotonic()
        about = f"Training {event.task}" + (f" on {event.message}" if event.message else "")
        self._line(about if event.step == 0 else f"{about}; going on from step {event.step:,}")
        for note in event.notes:
            self._line(note)
        if self._console.is_terminal:
            self._progress = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[note]}"),
                TimeRemainingColumn(),
                console=self._console,
            )
            self._bar = self._progress.add_task(
                f"Epoch {event.epoch}/{event.epochs}",
                total=event.epochs * event.steps_per_epoch,
                completed=event.step,
                note="",
            )
            self._progress.start()

    def _steps(self, event: Event) -> None:
        note = "  ".join(f"{name} {value:.4f}" for name, value in sorted(event.values.items()))
        if event.examples_per_second is not None:
            note += f"  {event.examples_per_second:,.0f}/s"
        description = f"Epoch {event.epoch}/{event.epochs}"
        if self._progress is not None and self._bar is not None:
            self._progress.update(self._bar, completed=event.step, description=description, note=note)
        elif time.monotonic() - self._last_line >= _SECONDS_BETWEEN_LINES:
            self._line(f"{description}  step {event.step:,}/{event.epochs * event.steps_per_epoch:,}  {note}")

    def _stop(self, event: Event) -> None:
        if self._progress is not None:
            self._progress.stop()
            self._progress = None
        if event.message != "finished":
            self._line(f"Training {event.message} after step {event.step:,}")

    def _line(self, text: str) -> None:
        self._last_line = time.monotonic()
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)


def describe_epoch(result: EpochResult, *, epochs: int) -> str:
    """One line with the numbers of an epoch.

    Args:
        result: The numbers.
        epochs: Epochs of the run in all.

    Returns:
        Such as ``Epoch 1/3  accuracy 0.8139  loss 0.5209  test accuracy 0.8655 ...``.
    """
    numbers = [f"{name} {value:.4f}" for name, value in sorted(result.train.items())]
    numbers += [f"test {name} {value:.4f}" for name, value in sorted(result.evaluation.items())]
    return "  ".join(
        [
            f"Epoch {result.epoch}/{epochs}",
            *numbers,
            f"{result.seconds + result.eval_seconds:.1f} s",
            f"{result.examples_per_second:,.0f} images/s",
        ]
    )
