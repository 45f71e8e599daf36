"""What one input function delivers on its own, and what a training step consumes."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from modelyard.errors import ConfigurationError
from modelyard.training.user import InputRequest, Task

_CHUNK = 32


@dataclass(frozen=True, kw_only=True)
class InputSpeed:
    """What an input function delivers: rates are medians of the rounds, times are those between two batches."""

    name: str
    batches: int
    examples: int
    examples_per_second: float
    megabytes_per_second: float
    p50_ms: float
    p95_ms: float
    first_batch_ms: float


@dataclass(frozen=True, kw_only=True)
class InputReport:
    """An input function, and where one was named a training step beside it, with its input in memory.

    ``ratio`` is what is delivered by what is consumed, the median over the rounds: above 1 computing is the limit.
    """

    input: InputSpeed
    step: str | None = None
    step_examples_per_second: float | None = None
    ratio: float | None = None

    def table(self) -> str:
        """The same as lines for people."""
        speed = self.input
        head = f"{'input':<28} {'examples/s':>11} {'MB/s':>8} {'p50 ms':>8} {'p95 ms':>8} {'first ms':>9}"
        row = (
            f"{speed.name:<28} {speed.examples_per_second:>11,.0f} {speed.megabytes_per_second:>8,.1f} "
            f"{speed.p50_ms:>8.3f} {speed.p95_ms:>8.3f} {speed.first_batch_ms:>9,.0f}"
        )
        lines = [head, row]
        if self.ratio is not None and self.step_examples_per_second is not None:
            limit = "computing" if self.ratio > 1 else "the input"
            lines += [
                f"{f'training step of {self.step}':<28} {self.step_examples_per_second:>11,.0f}",
                f"The input delivers {self.ratio:.2f} times what the step consumes: {limit} is the limit.",
            ]
        return "\n".join(lines)


def bench_input(
    make: Callable[[], tf.data.Dataset],
    *,
    name: str,
    seconds: float = 5.0,
    rounds: int = 3,
    task: Task | None = None,
    batch_size: int = 64,
    progress: Callable[[str], None] = lambda line: None,
) -> InputReport:
    """Measures an input function in a compiled loop, as training would run it, but with nothing else to do.

    With a task, rounds of the input and of the task's training step alternate,
    so that whatever else the machine does meets both.
    """
    if seconds <= 0 or rounds < 1:
        raise ConfigurationError(f"Received seconds {seconds} and rounds {rounds}; expected seconds > 0, rounds >= 1.")
    source = Source(make)
    step = None if task is None else Step(task, batch_size)
    delivered, consumed = [], []
    for number in range(1, rounds + 1):
        delivered.append(source.round(seconds / rounds))
        line = f"round {number} of {rounds}: input {delivered[-1]:,.0f} examples/s"
        if step is not None:
            consumed.append(step.round(seconds / rounds))
            line += f", step {consumed[-1]:,.0f} examples/s"
        progress(line)
    speed = source.speed(name, statistics.median(delivered))
    if task is None:
        return InputReport(input=speed)
    ratios = [rate / limit for rate, limit in zip(delivered, consumed, strict=True)]
    return InputReport(
        input=speed,
        step=task.name,
        step_examples_per_second=statistics.median(consumed),
        ratio=statistics.median(ratios),
    )


class Source:
    """A data set that is read to its end again and again."""

    def __init__(self, make: Callable[[], tf.data.Dataset]) -> None:
        began = time.perf_counter()
        self._iterator = iter(make().repeat())
        try:
            first = next(self._iterator)
        except StopIteration as exc:
            raise ConfigurationError("The input function delivers no batches; there is nothing to measure.") from exc
        self._first = time.perf_counter() - began
        parts = tf.nest.flatten(first)
        self._example_bytes = sum(part.dtype.size * int(np.prod(part.shape[1:])) for part in parts)
        self._loop = _make_loop()
        # Traced before the first round.
        self._loop(self._iterator, tf.constant(1))
        self._gaps: list[Any] = []
        self._examples = 0

    def round(self, seconds: float) -> float:
        """Examples per second over one round."""
        began, examples = time.perf_counter(), 0
        while (passed := time.perf_counter() - began) < seconds:
            times, sizes = self._loop(self._iterator, tf.constant(_CHUNK))
            self._gaps.append(np.diff(times.numpy()))
            examples += int(tf.reduce_sum(sizes))
        self._examples += examples
        return examples / passed

    def speed(self, name: str, rate: float) -> InputSpeed:
        """The numbers of all rounds."""
        gaps = np.concatenate(self._gaps) * 1000
        return InputSpeed(
            name=name,
            batches=len(gaps),
            examples=self._examples,
            examples_per_second=rate,
            megabytes_per_second=rate * self._example_bytes / 1e6,
            p50_ms=float(np.percentile(gaps, 50)),
            p95_ms=float(np.percentile(gaps, 95)),
            first_batch_ms=self._first * 1000,
        )


def _make_loop() -> Any:
    # One function for each input: TensorFlow warns where one is traced for many iterators.
    @tf.function
    def take(iterator: Any, count: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Takes batches; the time before the first and after each, and the size of each."""
        times = tf.TensorArray(tf.float64, size=count + 1)
        sizes = tf.TensorArray(tf.int64, size=count)
        times = times.write(0, tf.timestamp())
        for index in tf.range(count):
            parts = tf.nest.flatten(next(iterator))
            with tf.control_dependencies(parts):
                times = times.write(index + 1, tf.timestamp())
            sizes = sizes.write(index, tf.shape(parts[0], out_type=tf.int64)[0])
        return times.stack(), sizes.stack()

    return take


class Step:
    """A task's training step on one batch that stays in memory."""

    def __init__(self, task: Task, batch_size: int) -> None:
        task.build()
        batch = next(iter(task.train_dataset(InputRequest(batch_size=batch_size))))
        self._size = int(tf.nest.flatten(batch)[0].shape[0])

        def steps(count: tf.Tensor) -> tf.Tensor:
            total = tf.constant(0.0)
            for _ in tf.range(count):
                total += tf.reduce_mean(tf.cast(task.train_step(batch)["loss"], tf.float32))
            return total

        self._loop = tf.function(steps)
        self._loop(tf.constant(1))

    def round(self, seconds: float) -> float:
        """Examples per second over one round."""
        began, done = time.perf_counter(), 0
        while (passed := time.perf_counter() - began) < seconds:
            self._loop(tf.constant(_CHUNK)).numpy()
            done += _CHUNK
        return done * self._size / passed
