"""Trains on one replica and on two, in a process with two logical CPUs, and prints how far apart the weights end."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from modelyard.training import Trainer, TrainerOptions, average_loss, minimize, regularization_loss, restore
from modelyard.training.checkpoint import read_state
from tests.training.library_task import LibraryTask

OPTIONS = TrainerOptions(epochs=2, batch_size=8, steps_per_loop=4, seed=11)


class Places(LibraryTask):
    """A loss for each of 3 x 2 places, and regularization. 43 examples: the last batch is shared out 2 and 1."""

    def __init__(self) -> None:
        super().__init__()
        self.features, self.targets = self.features[:43], self.targets[:43]

    def build(self) -> None:
        layer = keras.layers.Dense(6, kernel_regularizer=keras.regularizers.L2(0.01))
        self.model = keras.Sequential([keras.Input((6,)), layer, keras.layers.Reshape((3, 2))])
        self.optimizer = keras.optimizers.SGD(0.05)
        self.optimizer.build(self.model.trainable_variables)

    def train_step(self, batch: Any) -> Mapping[str, Any]:
        features, targets = batch
        labels = targets[:, None, None] * tf.ones([1, 3, 2])
        with tf.GradientTape() as tape:
            losses = tf.square(self.model(features, training=True) - labels)
            loss = average_loss(losses) + regularization_loss(self.model.losses)
        minimize(loss, self.model.trainable_variables, optimizer=self.optimizer, tape=tape)
        return {"loss": losses}

    def eval_step(self, batch: Any) -> Mapping[str, Any]:
        return {"loss": tf.square(self.model(batch[0], training=False) - batch[1][:, None, None])}


def main() -> None:
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    mirrored = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    # Several options in one run: a mistake in any shows. Runs without options are compared by _across.
    options = {"loop": "epoch", "ema_decay": 0.9, "accumulate_steps": 3, "clip_norm": 0.5}
    apart = {
        "whole epoch, averaged, micro-batches, clipped": _apart(LibraryTask, options, options, mirrored),
        "labels [B, H, W], micro-batches": _apart(Places, {}, {"accumulate_steps": 2}, mirrored),
    }
    apart["saved with, restored without"], apart["saved without, restored with"] = _across(mirrored)
    sys.stdout.write(json.dumps(apart))


def _apart(make: Callable[[], Any], one: Mapping[str, Any], two: Mapping[str, Any], strategy: Any) -> float:
    first, second = make(), make()
    expected = Trainer(first, replace(OPTIONS, **one)).run()
    received = Trainer(second, replace(OPTIONS, **two), strategy=strategy).run()
    losses = [abs(a.train["loss"] - b.train["loss"]) for a, b in zip(expected.history, received.history, strict=True)]
    return max(_distance(first, second), *losses)


def _across(strategy: Any) -> tuple[float, float]:
    whole = LibraryTask()
    Trainer(whole, OPTIONS).run()
    distances = []
    for first, second in ((strategy, None), (None, strategy)):
        with tempfile.TemporaryDirectory() as name:
            options = replace(OPTIONS, model_dir=Path(name))
            Trainer(LibraryTask(), replace(options, epochs=1), strategy=first).run()
            task, restored = LibraryTask(), LibraryTask()
            result = Trainer(task, options, strategy=second).run()
            if result.resumed_from is None or result.checkpoint is None:
                raise RuntimeError("it did not resume")
            restore(Path(name), restored)
            if read_state(result.checkpoint).step != result.step:
                raise RuntimeError("the last step was not saved")
            distances.append(max(_distance(whole, task), _distance(task, restored)))
    return distances[0], distances[1]


def _distance(first: Any, second: Any) -> float:
    pairs = zip(first.model.variables, second.model.variables, strict=True)
    return max(float(np.abs(np.asarray(a) - np.asarray(b)).max()) for a, b in pairs)


if __name__ == "__main__":
    main()
