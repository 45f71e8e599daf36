"""A task for several processes: exact on any number of them, and it leaves behind what each process saw."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import keras
import numpy as np
import tensorflow as tf

from modelyard.training import InputRequest, average_loss, minimize
from tests.training.toy_task import EXAMPLES, WIDTH, ToyTask


class ClusterTask(ToyTask):
    """Reads the environment: ``CLUSTER_TASK_OUT``, a folder; ``CLUSTER_TASK_SLEEP``, seconds for each epoch;
    ``CLUSTER_TASK_SHARES``, whether each worker makes only its own input.
    """

    name: ClassVar[str] = "cluster"
    shares_input: ClassVar[bool] = bool(os.environ.get("CLUSTER_TASK_SHARES"))

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[int] = []
        self.requests: list[int] = []
        self.epochs = 0

    def build(self) -> None:
        layers = keras.layers
        self.model = keras.Sequential([keras.Input((WIDTH,)), layers.Dense(5, activation="relu"), layers.Dense(1)])
        self.optimizer = keras.optimizers.Adam(0.05)
        self.optimizer.build(self.model.trainable_variables)

    def train_step(self, batch: Any) -> Mapping[str, Any]:
        features, targets, rows = batch
        if "ps" not in os.environ.get("TF_CONFIG", ""):
            # Python of the chief's: it cannot run on a worker of a parameter server strategy.
            tf.numpy_function(self._see, [rows], [])
        with tf.GradientTape() as tape:
            losses = tf.square(self.model(features, training=True)[:, 0] - targets)
            loss = average_loss(losses)
        minimize(loss, self.model.trainable_variables, optimizer=self.optimizer, tape=tape)
        return {"loss": losses, "row": rows}

    def eval_step(self, batch: Any) -> Mapping[str, Any]:
        features, targets, rows = batch
        return {"loss": tf.square(self.model(features, training=False)[:, 0] - targets), "row": rows}

    def train_dataset(self, request: InputRequest) -> tf.data.Dataset:
        self.requests.append(request.num_shards)
        order = np.random.default_rng([request.seed, request.epoch]).permutation(EXAMPLES)
        arrays = (self.features[order], self.targets[order], order)
        size, workers, worker = request.batch_size * request.num_shards, request.num_shards, request.shard_index
        whole = tf.data.Dataset.from_tensor_slices(arrays).batch(size, drop_remainder=request.drop_remainder)
        left = whole.skip(request.skip_batches)
        if workers == 1:
            return left

        def share(*batch: Any) -> Any:
            count = tf.shape(batch[0])[0]
            return tuple(part[count * worker // workers : count * (worker + 1) // workers] for part in batch)

        return left.map(share)

    def eval_dataset(self, request: InputRequest) -> tf.data.Dataset:
        whole = tf.data.Dataset.from_tensor_slices((self.features, self.targets, np.arange(EXAMPLES)))
        folder = os.environ.get("CLUSTER_TASK_OUT")
        if folder:
            self._leave(Path(folder))
            time.sleep(float(os.environ.get("CLUSTER_TASK_SLEEP", "0")))
        return whole.batch(request.batch_size, drop_remainder=request.drop_remainder)

    def _see(self, rows: Any) -> None:
        self.seen.extend(int(row) for row in rows)

    def _leave(self, folder: Path) -> None:
        """What this process has seen since the last evaluation, and the weights it has now."""
        task = json.loads(os.environ["TF_CONFIG"])["task"]
        self.epochs += 1
        path = folder / f"{task['type']}-{task['index']}-{self.epochs}.json"
        weights = [np.asarray(value).tolist() for value in self.model.trainable_variables]
        path.write_text(json.dumps({"seen": sorted(self.seen), "weights": weights, "shards": self.requests}), "utf-8")
        self.seen.clear()


class PoisonedTask(ClusterTask):
    """One example of the first epoch is not a number; ``STEP`` is the step that gets it."""

    name: ClassVar[str] = "poisoned"
    STEP: ClassVar[int] = 3

    def __init__(self) -> None:
        super().__init__()
        order = np.random.default_rng([0, 0]).permutation(EXAMPLES)
        # With batches of 8.
        self.targets[order[8 * (self.STEP - 1)]] = np.nan


class CountingTask(ClusterTask):
    """Has a metric, which parameter servers cannot keep right."""

    name: ClassVar[str] = "counting"

    def build(self) -> None:
        super().build()
        self.error = keras.metrics.MeanAbsoluteError()

    def eval_step(self, batch: Any) -> Mapping[str, Any]:
        features, targets, _ = batch
        self.error.update_state(targets, self.model(features, training=False)[:, 0])
        return super().eval_step(batch)


class UndeclaredTask(CountingTask):
    """Does not say that it has one."""

    name: ClassVar[str] = "undeclared"

    @property
    def models(self) -> Mapping[str, Any]:
        return {"model": self.model, "optimizer": self.optimizer}
