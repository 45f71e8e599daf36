"""Scalars for TensorBoard."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tensorflow as tf

from modelyard.training._results import Event


class TensorBoardLog:
    """Action that writes scalars, in two runs that TensorBoard overlays.

    ``<folder>/train`` has, after each device loop, the averages over the epoch
    so far and ``examples_per_second``; ``<folder>/test`` has the averages of
    each evaluation. The x axis is the training step. Where a killed run goes
    on, the steps done again are in the files twice, with the same values.

    Args:
        folder: Where to; show it with ``tensorboard --logdir <folder>``.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._writers: dict[str, Any] = {}

    def __call__(self, event: Event) -> None:
        """Writes the numbers of one event.

        Args:
            event: From the trainer.
        """
        if event.kind == "steps":
            rate = {} if event.examples_per_second is None else {"examples_per_second": event.examples_per_second}
            self._write("train", {**event.values, **rate}, event.step)
        elif event.kind == "epoch" and event.result is not None:
            self._write("test", event.result.evaluation, event.step)
            for writer in self._writers.values():
                writer.flush()
        elif event.kind == "stop":
            for writer in self._writers.values():
                writer.close()
            self._writers = {}

    def _write(self, run: str, values: Mapping[str, float], step: int) -> None:
        if run not in self._writers:
            self._writers[run] = tf.summary.create_file_writer(str(self._folder / run))
        with self._writers[run].as_default(step=step):
            for name, value in values.items():
                tf.summary.scalar(name, value)
