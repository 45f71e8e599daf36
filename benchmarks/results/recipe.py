"""A row of the page: which task is run how, and what its figure is read off."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from modelyard.training import Event, Task, Trainer, TrainerOptions, TrainResult
from modelyard.training.data import FashionMnist
from modelyard.training.tasks import PictureLog

SEED = 0


@dataclass(frozen=True, kw_only=True)
class Run:
    """What a figure is read off.

    Attributes:
        task: As training left it.
        result: Of the run.
        history: Measurements by step.
        seconds: Of the whole run.
        processor_seconds: What all cores spent on it, whatever else they did meanwhile.
    """

    task: Any
    result: TrainResult
    history: Mapping[int, Mapping[str, float]]
    seconds: float
    processor_seconds: float

    def by_epoch(self, name: str) -> list[float]:
        """A number of the evaluation, after each epoch."""
        return [epoch.evaluation[name] for epoch in self.result.history]

    def ends(self, name: str) -> tuple[float, float]:
        """A measurement before the first step and after the last."""
        values = [measured[name] for measured in self.history.values()]
        return values[0], values[-1]


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """One task's row.

    Attributes:
        make: Makes the task from the full data set.
        must_show: What the row is there for.
        read: From the run to the figure in words, and whether it shows what it must.
        options: On top of the task's recipe.
        values: What differs from the task's defaults, in words.
        data: What it trains on, where the task itself would name a folder that is gone by then.
    """

    make: Callable[[FashionMnist], Task]
    must_show: str
    read: Callable[[Run], tuple[str, bool]]
    options: Mapping[str, Any] = field(default_factory=dict)
    values: str = ""
    data: str = ""


class ProcessorLimit:
    """Ends a run after the epoch in which its processor time is up.

    Args:
        seconds: From its making on.
    """

    def __init__(self, seconds: float) -> None:
        self._end = time.process_time() + seconds
        self.should_stop = False

    def __call__(self, event: Event) -> None:
        """Looks at the clock."""
        self.should_stop = time.process_time() >= self._end


def run_task(task: Task, options: Mapping[str, Any], *actions: Callable[[Event], None]) -> Run:
    """Trains with the task's recipe and some options on top, and measures before the first step and after the last.

    Args:
        task: To train.
        options: Of :class:`TrainerOptions`.
        actions: Beside the measurements.
    """
    started, processor = time.monotonic(), time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        pictures = PictureLog(task, Path(folder) / "pictures", every_steps=10_000_000)
        values = TrainerOptions(**{**task.recipe, "seed": SEED, **options})
        result = Trainer(task, values, [*actions, pictures]).run()
    return Run(
        task=task,
        result=result,
        history=pictures.history,
        seconds=time.monotonic() - started,
        processor_seconds=time.process_time() - processor,
    )
