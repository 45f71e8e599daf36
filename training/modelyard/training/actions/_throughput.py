"""How fast a run is: examples per second, and the time of a step."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from modelyard.errors import TrainingError
from modelyard.training.run import Evaluated, Event, RunEnded, RunStarted, StepsDone


@dataclass(frozen=True, kw_only=True)
class Throughput:
    """The speed of a run, without its first device loop, which pays for tracing.

    Attributes:
        steps: Steps that were measured.
        examples_per_second: Examples by time.
        step_seconds_p50: Half of the steps took no longer, in seconds.
        step_seconds_p95: 95 of 100 steps took no longer, in seconds.
    """

    steps: int
    examples_per_second: float
    step_seconds_p50: float
    step_seconds_p95: float


class ThroughputLog:
    """Action that keeps the time of every device loop.

    A loop of many steps is measured as a whole and counts with the average for
    each of them; ``steps_per_loop=1``, or the loop form ``step``, shows single steps.

    Args:
        path: A JSON file for the summary and the history, written after each
            evaluation and at the end; None for none.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._loops: list[_Loop] = []
        self._skipped = False

    def __call__(self, event: Event) -> None:
        """Adds a device loop.

        Args:
            event: From the trainer.

        Raises:
            TrainingError: The file cannot be written.
        """
        if isinstance(event, RunStarted):
            self._loops, self._skipped = [], False
        elif isinstance(event, StepsDone) and event.steps:
            if self._skipped:
                self._loops.append(
                    _Loop(
                        step=event.step,
                        steps=event.steps,
                        seconds=event.seconds,
                        examples_per_second=event.examples_per_second,
                    )
                )
            self._skipped = True
        elif isinstance(event, Evaluated | RunEnded):
            self._write()

    def summary(self) -> Throughput | None:
        """The speed so far; None before the second device loop."""
        if not self._loops:
            return None
        seconds = sum(loop.seconds for loop in self._loops)
        examples = sum(loop.examples_per_second * loop.seconds for loop in self._loops)
        return Throughput(
            steps=sum(loop.steps for loop in self._loops),
            examples_per_second=examples / seconds,
            step_seconds_p50=self._percentile(0.5),
            step_seconds_p95=self._percentile(0.95),
        )

    def _percentile(self, share: float) -> float:
        wanted = share * sum(loop.steps for loop in self._loops)
        seen = 0
        times = sorted((loop.seconds / loop.steps, loop.steps) for loop in self._loops)
        for step_seconds, steps in times:
            seen += steps
            if seen >= wanted:
                return step_seconds
        return times[-1][0]

    def _write(self) -> None:
        summary = self.summary()
        if self._path is None or summary is None:
            return
        document = {"summary": asdict(summary), "loops": [asdict(loop) for loop in self._loops]}
        temporary = self._path.with_name(self._path.name + ".new")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            temporary.write_text(json.dumps(document, indent=1) + "\n", "utf-8")
            os.replace(temporary, self._path)
        except OSError as exc:
            raise TrainingError(f"The file {self._path} cannot be written: {exc}") from exc


@dataclass(frozen=True, kw_only=True)
class _Loop:
    step: int
    steps: int
    seconds: float
    examples_per_second: float
