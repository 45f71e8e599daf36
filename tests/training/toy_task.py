"""A task that is quick and has everything that a resume may lose: dropout, a generator, slots, a last small batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import keras
import numpy as np
import tensorflow as tf

from modelyard.artifact import EncodedImageFunction, SignatureFunction, VerificationData
from modelyard.training import InputRequest, Task

EXAMPLES = 44
WIDTH = 6
#: With batches of 8.
STEPS_PER_EPOCH = 6


class ToyTask(Task):
    name: ClassVar[str] = "toy"

    def __init__(self, *, units: int = 5, layers: int = 1, learning_rate: float = 0.05) -> None:
        self.units = units
        self.layers = layers
        self.learning_rate = learning_rate
        self.model: Any = None
        self.optimizer: Any = None
        rng = np.random.default_rng(3)
        self.features = rng.normal(size=(EXAMPLES, WIDTH)).astype(np.float32)
        self.targets = self.features.sum(axis=1) + 1.0

    def build(self) -> None:
        hidden = [keras.layers.Dense(self.units, activation="relu") for _ in range(self.layers)]
        self.model = keras.Sequential(
            [keras.Input((WIDTH,)), *hidden, keras.layers.Dropout(0.3), keras.layers.Dense(1)]
        )
        self.optimizer = keras.optimizers.Adam(self.learning_rate)
        self.optimizer.build(self.model.trainable_variables)

    def train_step(self, batch: Any) -> Mapping[str, Any]:
        features, targets = batch
        noise = tf.random.get_global_generator().normal(tf.shape(features), stddev=0.05)
        with tf.GradientTape() as tape:
            losses = tf.square(self.model(features + noise, training=True)[:, 0] - targets)
            loss = tf.reduce_mean(losses)
        variables = self.model.trainable_variables
        self.optimizer.apply(tape.gradient(loss, variables), variables)
        return {"loss": losses}

    def eval_step(self, batch: Any) -> Mapping[str, Any]:
        features, targets = batch
        return {"loss": tf.square(self.model(features, training=False)[:, 0] - targets)}

    def train_dataset(self, request: InputRequest) -> tf.data.Dataset:
        order = np.random.default_rng([request.seed, request.epoch]).permutation(len(self.features))
        whole = tf.data.Dataset.from_tensor_slices((self.features[order], self.targets[order]))
        return whole.batch(request.batch_size).skip(request.skip_batches)

    def eval_dataset(self, request: InputRequest) -> tf.data.Dataset:
        return tf.data.Dataset.from_tensor_slices((self.features, self.targets)).batch(request.batch_size)

    def signatures(self) -> Mapping[str, SignatureFunction | EncodedImageFunction]:
        return {}

    def verification_data(self, count: int) -> VerificationData:
        return VerificationData(inputs={}, description=f"{count} of none")

    def data_description(self) -> str:
        return "44 made-up examples"

    def values(self) -> list[np.ndarray[Any, Any]]:
        """Every number of the model and of its optimizer."""
        return [np.asarray(value) for value in [*self.model.variables, *self.optimizer.variables]]


def same_values(one: Any, other: Any) -> bool:
    """Whether every number of two tasks is the same."""
    return all(np.array_equal(a, b) for a, b in zip(one.values(), other.values(), strict=True))
