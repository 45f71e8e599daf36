"""How fast a run is: examples per second, and the time of a step."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from modelyard.errors import TrainingError
from modelyard.training.run import Evaluated, Event, RunEnded, RunStarted, StepsDone, replace_file

_WRITTEN = ("step", "steps", "seconds", "examples_per_second")


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

    A loop of many steps counts with the average for each of them; ``steps_per_loop=1``, or ``loop="step"``,
    shows single steps.

    Args:
        path: A JSON file for summary and history, written after each evaluation and at the end; None for none.
    """

    def __init__(self, path: Path | str | None = None) -> None:
        self._path = None if path is None else Path(path)
        #: The first of them pays for tracing.
        self._loops: list[StepsDone] = []

    def __call__(self, event: Event) -> None:
        """Adds a device loop.

        Raises:
            TrainingError: The file cannot be written.
        """
        if isinstance(event, RunStarted):
            self._loops = []
        elif isinstance(event, StepsDone) and event.steps:
            self._loops.append(event)
        elif isinstance(event, Evaluated | RunEnded):
            self._write()

    def summary(self) -> Throughput | None:
        """The speed so far; None before the second device loop."""
        loops = self._loops[1:]
        if not loops:
            return None
        steps, seconds = [loop.steps for loop in loops], [loop.seconds for loop in loops]
        each = np.repeat(np.divide(seconds, steps), steps)
        p50, p95 = np.quantile(each, [0.5, 0.95], method="inverted_cdf")
        return Throughput(
            steps=sum(steps),
            examples_per_second=sum(loop.examples_per_second * loop.seconds for loop in loops) / sum(seconds),
            step_seconds_p50=float(p50),
            step_seconds_p95=float(p95),
        )

    def _write(self) -> None:
        summary = self.summary()
        if self._path is None or summary is None:
            return
        loops = [{name: getattr(loop, name) for name in _WRITTEN} for loop in self._loops[1:]]
        document = {"summary": asdict(summary), "loops": loops}
        replace_file(self._path, json.dumps(document, indent=1) + "\n", error=TrainingError)
