"""Measures the trainer against model.fit and a plain loop, and writes its table of docs/performance.md.

The same network, initial weights, images, batch size and optimizer for all:
those of the task ``fashion``. The contenders take turns (A B C ... A B C ...),
each for a second or two, so that whatever else the machine does meets all of
them; a ratio is that of one round, and the table has the median over the
rounds. Tracing is not counted, for anyone.

    python -m benchmarks.training [--write] [--rounds N] [--batches N]
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import numpy as np

from benchmarks.pages import processor, write_section

PAGE = Path(__file__).parents[1].joinpath("docs", "performance.md")
START, END = "<!-- training:begin -->", "<!-- training:end -->"
BATCH_SIZE = 64
FIT, PLAIN = "`model.fit`", "`GradientTape` loop, not compiled"
TARGETS = {FIT: 1.3, PLAIN: 4.0}
#: The plain loop is slow: a share of the batches is enough for its speed.
PLAIN_SHARE = 0.25


def main() -> int:
    """Measures, prints the section, and writes it where that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write the table into docs/performance.md")
    parser.add_argument("--rounds", type=int, default=7, help="turns of each contender (default: %(default)s)")
    parser.add_argument("--batches", type=int, default=100, help="steps of each turn (default: %(default)s)")
    arguments = parser.parse_args()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    rates = measure(arguments.rounds, arguments.batches)
    text, reached = section(rates, arguments.batches)
    print(text)
    if arguments.write:
        write_section(PAGE, START, END, text)
    return 0 if reached else 1


def measure(rounds: int, batches: int) -> dict[str, list[float]]:
    """Images per second of every contender in every round."""
    from modelyard.training.data import load_fashion_mnist

    whole = load_fashion_mnist()
    count = BATCH_SIZE * batches
    if len(whole.train_images) < count:
        # The subset that ships with modelyard, several times over: speed does not depend on what is in the images.
        repeats = -(-count // len(whole.train_images))
        images, labels = np.tile(whole.train_images, (repeats, 1, 1)), np.tile(whole.train_labels, repeats)
    else:
        images, labels = whole.train_images, whole.train_labels
    data = replace(
        whole,
        train_images=images[:count],
        train_labels=labels[:count],
        test_images=whole.test_images[:500],
        test_labels=whole.test_labels[:500],
    )
    contenders: dict[str, Callable[[], float]] = {
        FIT: _fit(data),
        PLAIN: _plain(data),
        "Trainer, `loop='step'`": lambda: _trainer(data, "step"),
        "Trainer, `loop='loop'` (default)": lambda: _trainer(data, "loop"),
        "Trainer, `loop='loop'`, every step streamed": lambda: _streamed(data),
        "Trainer, `loop='epoch'`": lambda: _trainer(data, "epoch"),
    }
    rates: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(rounds):
        for name, run in contenders.items():
            rates[name].append(run())
        print(
            f"Round {number + 1} of {rounds}: " + ", ".join(f"{runs[-1]:,.0f}" for runs in rates.values()), flush=True
        )
    return rates


def _fit(data: Any) -> Callable[[], float]:
    """model.fit: the same network, and the input function of the task, which is faster than arrays."""
    import keras

    task = _task(data)
    model = task.model
    model.compile(
        optimizer=keras.optimizers.Adam(1e-3),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    dataset = _batches(task)

    def turn() -> float:
        # A Trainer sets TensorFlow's seed, which empties its caches: they are filled again before the clock starts.
        model.fit(dataset.take(3), verbose=0)
        return _rate(len(data.train_images), lambda: model.fit(dataset, verbose=0))

    return turn


def _plain(data: Any) -> Callable[[], float]:
    """What a step does, with no tf.function around it."""
    task = _task(data)
    dataset = _batches(task)
    steps = max(int(len(dataset) * PLAIN_SHARE), 1)

    def run(steps: int) -> None:
        for batch in dataset.take(steps):
            task.train_step(batch)

    def turn() -> float:
        run(3)
        return _rate(BATCH_SIZE * steps, lambda: run(steps))

    return turn


def _trainer(data: Any, loop: Literal["step", "loop", "epoch"]) -> float:
    """The second of two epochs."""
    from modelyard.training import EvalResult, Trainer, TrainerOptions
    from modelyard.training.tasks import FashionTask

    options = TrainerOptions(epochs=2, batch_size=BATCH_SIZE, loop=loop)
    last: EvalResult = Trainer(FashionTask(data=data), options).run().history[-1]
    return last.examples_per_second


def _streamed(data: Any) -> float:
    """The second of two epochs, while a consumer looks at the loss of every step."""
    from modelyard.training import Evaluated, Event, Trainer, TrainerOptions
    from modelyard.training.tasks import FashionTask

    rates: list[float] = []

    def keep(event: Event) -> None:
        if isinstance(event, Evaluated):
            rates.append(event.result.examples_per_second)

    losses = [
        values["loss"]
        for _, values in Trainer(
            FashionTask(data=data), TrainerOptions(epochs=2, batch_size=BATCH_SIZE), [keep]
        ).stream()
    ]
    if len(losses) != 2 * len(data.train_images) // BATCH_SIZE:
        raise RuntimeError(f"{len(losses)} steps were streamed")
    return rates[-1]


def _task(data: Any) -> Any:
    from modelyard.training.tasks import FashionTask

    task = FashionTask(data=data)
    task.build()
    return task


def _batches(task: Any) -> Any:
    from modelyard.training import InputRequest

    return task.train_dataset(InputRequest(batch_size=BATCH_SIZE))


def _rate(images: int, run: Callable[[], object]) -> float:
    began = time.perf_counter()
    run()
    return images / (time.perf_counter() - began)


def section(rates: dict[str, list[float]], batches: int) -> tuple[str, bool]:
    """The section's text, and whether both targets are reached."""
    rounds = len(rates[FIT])
    rows = []
    for name, runs in rates.items():
        against = " | ".join(f"{_ratio(runs, rates[base]):.2f}" for base in (FIT, PLAIN))
        rows.append(f"| {name} | {statistics.median(runs):,.0f} | {against} |")
    best = list(rates)[-1]
    ratios = {base: _ratio(rates[best], rates[base]) for base in TARGETS}
    verdicts = [
        f"{ratios[base]:.2f} times {base} (target {target}: {'reached' if ratios[base] >= target else 'NOT reached'})"
        for base, target in TARGETS.items()
    ]
    text = f"""\
## Training

A whole epoch in one compiled function, on data that stays in memory, is {verdicts[0]}, and {verdicts[1]}.

| Fashion-MNIST network, batch {BATCH_SIZE} | Images/s | Against {FIT} | Against the plain loop |
|---|---:|---:|---:|
{chr(10).join(rows)}

Medians of {rounds} rounds in which all took turns, {batches} steps each ({int(batches * PLAIN_SHARE)} for the plain
loop); a ratio is the median of the rounds' ratios. `model.fit` gets its batches from the same input function as the
Trainer. Written by `make bench NAME=training` on {processor()}, {os.cpu_count()} logical cores; Python
{platform.python_version()}, TensorFlow {version("tensorflow")}, Keras {version("keras")}."""
    return text, all(ratios[base] >= target for base, target in TARGETS.items())


def _ratio(runs: list[float], base: list[float]) -> float:
    return statistics.median(one / other for one, other in zip(runs, base, strict=True))


if __name__ == "__main__":
    sys.exit(main())
