"""How long the trainings of the tasks' sources take here: some steps of each are timed, the rest is multiplied."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

from benchmarks.results.garments import rendered_folder
from modelyard.training import InputRequest, Task, Trainer, TrainerOptions
from modelyard.training.data import FashionMnist, load_fashion_mnist
from modelyard.training.tasks import TransferTask, tasks

#: Processor seconds of timed steps for each task, and bounds of how many steps.
_SECONDS = 8.0
_LEAST, _MOST = 4, 200
#: Retinal scans of Kermany et al., 2018; the folder here is smaller, its images are resized to the same size.
_RETINAL_SCANS = 84_495


def time_full(name: str) -> dict[str, Any]:
    """Times some steps of what ``modelyard train NAME --full`` runs.

    Args:
        name: Of the task.

    Returns:
        What the page says of it; times in processor seconds.
    """
    data = load_fashion_mnist(allow_subset=False)
    task = make(name, data)
    recipe = {**TASK_DEFAULTS, **task.recipe, **task.full_recipe}
    batch_size, epochs = recipe["batch_size"], recipe["epochs"]
    options = TrainerOptions(epochs=epochs, batch_size=batch_size, loop="step", seed=0)
    times = _step_times(task, options)
    if name == "transfer":
        steps = -(-_RETINAL_SCANS // batch_size)
    else:
        steps = int(task.train_dataset(InputRequest(batch_size=batch_size)).cardinality())
    return {
        "epochs": epochs,
        "batch_size": batch_size,
        "steps": steps,
        "timed": len(times),
        "step_seconds": statistics.median(times),
    }


def full_table(rows: Mapping[str, Mapping[str, Any]]) -> str:
    """The part of results.md about the full recipes; empty where none was timed.

    Args:
        rows: By task; those with ``full`` have been timed.
    """
    timed = {name: row["full"] for name, row in sorted(rows.items()) if "full" in row}
    if not timed:
        return ""
    lines = [
        f"| `{name}` | {full['epochs']} of {full['steps']:,} steps of {full['batch_size']} | {full['timed']} "
        f"| {_readable(full['step_seconds'])} | {_readable(full['step_seconds'] * full['steps'])} "
        f"| {_readable(full['step_seconds'] * full['steps'] * full['epochs'])} |"
        for name, full in timed.items()
    ]
    return f"""
## How long the full recipes take

What `modelyard train TASK --full` takes on two cores, in processor time of both, evaluation and pictures left out. It
was not run for this table: some steps were timed, and their median multiplied. Measured beside other work, where the
clock would have said more about that; on two idle cores a training takes between half this time and all of it.
`transfer` is MobileNetV2 at its default size and with its default number of layers trained, for as many images as
there are retinal scans of Kermany et al., {_RETINAL_SCANS:,}.

| Task | `--full`: epochs | Steps timed | One step | One epoch | All |
|---|---|---:|---:|---:|---:|
{chr(10).join(lines)}

Made with `python -m benchmarks.results --full-times`.
"""


TASK_DEFAULTS: Mapping[str, Any] = {"batch_size": TrainerOptions().batch_size, "epochs": 10}


def make(name: str, data: FashionMnist) -> Task:
    """A task with its defaults; of ``transfer``, on rendered garments.

    Args:
        name: Of the task.
        data: The full data set.
    """
    if name == "transfer":
        # Weights of any value take the same time.
        return TransferTask(folder=rendered_folder(data), weights="none")
    kind: Callable[..., Task] = tasks()[name]
    return kind() if name in ("linear", "maml", "siamese_text") else kind(data=data)


def _step_times(task: Task, options: TrainerOptions) -> list[float]:
    """Processor seconds of each step."""
    found: list[float] = []
    stream = Trainer(task, options).stream()
    try:
        # Tracing and warming up are in the first two steps.
        next(stream)
        next(stream)
        before = time.process_time()
        for _ in stream:
            now = time.process_time()
            found.append(now - before)
            before = now
            if len(found) >= _MOST or (len(found) >= _LEAST and sum(found) >= _SECONDS):
                break
    finally:
        stream.close()
    return found


def _readable(seconds: float) -> str:
    if seconds < 1:
        return f"{1000 * seconds:,.1f} ms"
    if seconds < 120:
        return f"{seconds:,.1f} s"
    return f"{seconds / 60:,.1f} min" if seconds < 7200 else f"{seconds / 3600:,.1f} h"
