"""The task ``mlp``: a perceptron of two hidden layers, with metrics and a loss of the model's own.

Source: TensorFlow's guide "Writing a training loop from scratch" (Chollet, 2019).
784-64-64-10 with ReLU; the first hidden layer is followed by a layer that adds
``1e-2`` times the sum of its activations, as a mean over the batch, to the
loss (``add_loss``). Cross-entropy of the logits ``[B, 10]``, Adam at 1e-3.
Fashion-MNIST takes the place of the guide's digits.

Measured: loss and accuracy by epoch, on training and test images.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import keras
import tensorflow as tf

from modelyard.training.data import FashionMnist
from modelyard.training.tasks._images import PIXELS, SIDE, FashionImagesTask, hits
from modelyard.training.user import average_loss, minimize, regularization_loss

_HIDDEN = 64


class ActivityRegularization(keras.layers.Layer):
    """Passes its input on, and adds a loss for it.

    Args:
        rate: Weight of the sum over the units, mean over the batch.
    """

    def __init__(self, rate: float, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.rate = rate

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        """Adds the loss.

        Args:
            inputs: float32 ``[B, units]``.

        Returns:
            The same.
        """
        self.add_loss(self.rate * tf.reduce_mean(tf.reduce_sum(inputs, axis=-1)))
        return inputs


class MlpTask(FashionImagesTask):
    """A perceptron of two hidden layers on Fashion-MNIST.

    Args:
        data: Images that are already loaded; None loads them when they are first needed.
        learning_rate: Step size of Adam.
        regularization: Weight of the loss that the first hidden layer's activations add.
    """

    name: ClassVar[str] = "mlp"

    def __init__(
        self, *, data: FashionMnist | None = None, learning_rate: float = 1e-3, regularization: float = 1e-2
    ) -> None:
        super().__init__(data=data)
        self._learning_rate = learning_rate
        self._regularization = regularization

    def build(self) -> None:
        """Creates the network and its optimizer."""
        layers = keras.layers
        self.model = keras.Sequential(
            [
                keras.Input((SIDE, SIDE, 1), name="image"),
                layers.Reshape((PIXELS,)),
                layers.Dense(_HIDDEN, activation="relu"),
                ActivityRegularization(self._regularization),
                layers.Dense(_HIDDEN, activation="relu"),
                layers.Dense(len(self.data.class_names)),
            ],
            name=self.name,
        )
        self.optimizer = keras.optimizers.Adam(self._learning_rate)

    def train_step(self, batch: Any) -> Mapping[str, Any]:
        """``loss`` and ``accuracy`` of each example, float32 ``[B]``, ``regularization``, a scalar; a step of Adam."""
        images, labels = batch
        with tf.GradientTape() as tape:
            logits = self.model(images, training=self.training)
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
            own = regularization_loss(self.model.losses)
            loss = average_loss(losses) + own
        minimize(loss, self.model.trainable_variables, optimizer=self.optimizer, tape=tape)
        return {"loss": losses, "accuracy": hits(labels, logits), "regularization": own}
