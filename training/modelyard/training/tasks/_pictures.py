"""An action that keeps looking at what a task's models make."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from modelyard.errors import ConfigurationError
from modelyard.training.plots import save_curves, save_image
from modelyard.training.run import Event, RunEnded, RunStarted, StepsDone, TrainResult, curve_panels
from modelyard.training.user import Task
from modelyard.wire import json_text


def draw_run(task: Task, result: TrainResult, folder: Path) -> list[Path]:
    """Draws the curves of every number of a run, and what :meth:`Task.draw` does; returns the files."""
    curves = folder / "curves.png"
    save_curves(curve_panels(result.history), curves, title=result.task.name)
    return [curves, *task.draw(result, folder)]


class PictureLog:
    """Looks at what the models make: at the start, every so many steps, and at the end, when a device loop ends.

    :meth:`Task.pictures` go to files ``step-000500-<name>.png`` and to TensorBoard, :meth:`Task.measurements` to
    TensorBoard and to ``measurements.jsonl``. TensorBoard's files go to ``tensorboard`` beside the folder.

    Raises:
        ConfigurationError: ``every_steps`` is below 1.
    """

    def __init__(self, task: Task, folder: Path | str, *, every_steps: int = 500) -> None:
        if every_steps < 1:
            raise ConfigurationError(f"every_steps is {every_steps}; expected at least 1.")
        self._task = task
        self._folder = Path(folder)
        self._every = every_steps
        self._writer: Any = None
        self._last = -1
        #: Measurements by step.
        self.history: dict[int, dict[str, float]] = {}

    def __call__(self, event: Event) -> None:
        """Looks, where it is time."""
        due = isinstance(event, StepsDone) and event.step // self._every > self._last // self._every
        ended = isinstance(event, RunEnded)
        if isinstance(event, RunStarted) or due or (ended and event.step > self._last):
            self._last = event.step
            self._write(event.step)
        if ended and self._writer is not None:
            self._writer.close()

    def _write(self, step: int) -> None:
        import tensorflow as tf

        pictures, measured = self._task.pictures(), dict(self._task.measurements())
        if (pictures or measured) and self._writer is None:
            self._writer = tf.summary.create_file_writer(str(self._folder.parent / "tensorboard"))
        for name, pixels in pictures.items():
            save_image(pixels, self._folder / f"step-{step:06d}-{name}.png")
            image = pixels[None, :, :, None] if pixels.ndim == 2 else pixels[None]
            with self._writer.as_default(step=step):
                tf.summary.image(name, image)
        if measured:
            self.history[step] = measured
            with self._writer.as_default(step=step):
                for name, value in measured.items():
                    tf.summary.scalar(name, value)
            self._folder.mkdir(parents=True, exist_ok=True)
            with (self._folder / "measurements.jsonl").open("a", encoding="utf-8") as log:
                log.write(json_text({"step": step, **measured}) + "\n")
