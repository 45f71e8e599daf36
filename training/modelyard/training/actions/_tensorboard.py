"""Scalars, histograms and images for TensorBoard."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import tensorflow as tf

from modelyard.errors import TrainingError
from modelyard.training.actions._predictions import ImagePredictions
from modelyard.training.checkpoint import list_weights
from modelyard.training.run import Evaluated, Event, RunEnded, StepsDone, first_line
from modelyard.training.user import Task


class TensorBoardLog:
    """Action that writes scalars, in two runs that TensorBoard overlays; the x axis is the training step.

    ``<folder>/train`` has, after each device loop, the averages since the last evaluation and
    ``examples_per_second``, and after each evaluation histograms of the weights; ``<folder>/test`` has the averages of
    each evaluation, and images with their predictions. Steps that a killed run does again are in the files twice,
    with the same values.

    Args:
        folder: Where to; show it with ``tensorboard --logdir <folder>``.
        histograms: The task whose weights to show as histograms; None for none.
        predictions: Called after each evaluation for images, such as ``lambda: predict_images(task)``; None for none.
    """

    def __init__(
        self,
        folder: Path | str,
        *,
        histograms: Task | None = None,
        predictions: Callable[[], ImagePredictions] | None = None,
    ) -> None:
        self._folder = Path(folder)
        self._histograms = histograms
        self._predictions = predictions
        self._writers: dict[str, tf.summary.SummaryWriter] = {}

    def __call__(self, event: Event) -> None:
        """Writes the numbers of one event.

        Raises:
            TrainingError: The files cannot be written.
        """
        try:
            self._take(event)
        except tf.errors.OpError as exc:
            raise TrainingError(f"The log {self._folder} cannot be written: {first_line(exc)}") from exc

    def _take(self, event: Event) -> None:
        if isinstance(event, StepsDone):
            self._write("train", {**event.values, "examples_per_second": event.examples_per_second}, event.step)
        elif isinstance(event, Evaluated):
            self._write("test", event.result.evaluation, event.step)
            self._write_weights(event.step)
            self._write_images(event.step)
            for writer in self._writers.values():
                writer.flush()
        elif isinstance(event, RunEnded):
            for writer in self._writers.values():
                writer.close()
            self._writers = {}

    def _writer(self, run: str) -> tf.summary.SummaryWriter:
        if run not in self._writers:
            self._writers[run] = tf.summary.create_file_writer(str(self._folder / run))
        return self._writers[run]

    def _write(self, run: str, values: Mapping[str, float], step: int) -> None:
        with self._writer(run).as_default(step=step):
            for name, value in values.items():
                tf.summary.scalar(name, value)

    def _write_weights(self, step: int) -> None:
        if self._histograms is None:
            return
        with self._writer("train").as_default(step=step):
            for variable in list_weights(self._histograms.models):
                tf.summary.histogram(getattr(variable, "path", variable.name), tf.convert_to_tensor(variable))

    def _write_images(self, step: int) -> None:
        if self._predictions is None:
            return
        found = self._predictions()
        lines = [f"{place}. {label}" for place, label in enumerate(found.predicted, 1)]
        with self._writer("test").as_default(step=step):
            tf.summary.image("predictions", found.images, max_outputs=len(found.images))
            tf.summary.text("predicted labels", "\n".join(lines))
