"""Tasks whose steps use the library's helpers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from modelyard.training import average_loss, minimize
from tests.training.toy_task import ToyTask


class LibraryTask(ToyTask):
    """The toy, with nothing random in its step."""

    def losses(self, batch: Any) -> Any:
        features, targets = batch
        return tf.square(self.model(features, training=False)[:, 0] - targets)

    def train_step(self, batch: Any) -> Mapping[str, Any]:
        with tf.GradientTape() as tape:
            losses = self.losses(batch)
            loss = average_loss(losses)
        minimize(loss, self.model.trainable_variables, optimizer=self.optimizer, tape=tape)
        return {"loss": losses}
