"""An exponential moving average of the weights, for evaluation and export."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import tensorflow as tf


class WeightAverage(tf.Module):
    """Averages of variables, each ``decay * average + (1 - decay) * value`` after every step.

    At the start of a run the decay is ``(1 + step) / (10 + step)`` where that is less: the first weights are random.
    """

    def __init__(self, variables: Sequence[tf.Variable], decay: float) -> None:
        super().__init__()
        self._decay = decay
        self._sources = list(variables)
        self.averages = [tf.Variable(tf.convert_to_tensor(source), trainable=False) for source in self._sources]

    def reset(self) -> None:
        """Starts anew from the variables' present values."""
        for average, source in zip(self.averages, self._sources, strict=True):
            average.assign(tf.convert_to_tensor(source))

    def update(self, step: tf.Tensor) -> None:
        """Adds the present values, after so many steps before this one, int64 ``[]``."""
        done = tf.cast(step, tf.float32)
        keep = tf.minimum(tf.constant(self._decay, tf.float32), (1.0 + done) / (10.0 + done))
        for average, source in zip(self.averages, self._sources, strict=True):
            value = tf.convert_to_tensor(source)
            average.assign(value + tf.cast(keep, value.dtype) * (tf.convert_to_tensor(average) - value))

    def swap(self) -> None:
        """Exchanges the averages and the variables."""
        for average, source in zip(self.averages, self._sources, strict=True):
            value, mean = tf.identity(tf.convert_to_tensor(source)), tf.identity(tf.convert_to_tensor(average))
            source.assign(mean)
            average.assign(value)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """While it is entered, the variables have the averages."""
        self.swap()
        try:
            yield
        finally:
            self.swap()
