"""The task ``mlp``: a perceptron of two hidden layers, with metrics and a loss of the model's own.

Source: TensorFlow's guide "Writing a training loop from scratch" (Chollet, 2019). 784-64-64-10 with ReLU; the first
hidden layer is followed by a layer that adds ``1e-2`` times the sum of its activations, as a mean over the batch, to
the loss (``add_loss``). Cross-entropy of the logits ``[B, 10]``, Adam at 1e-3. Fashion-MNIST takes the place of the
guide's digits.

Measured: loss and accuracy by epoch, on training and test images.
"""

from __future__ import annotations

import keras

from modelyard.training.data import Mnist
from modelyard.training.tasks.inputs import PIXELS, SIDE, ClassifierTask, FashionImagesTask

_HIDDEN = 64


class MlpTask(ClassifierTask, FashionImagesTask):
    """A perceptron of two hidden layers on Fashion-MNIST.

    Args:
        data: Images, or a folder of them in MNIST's idx format; None loads Fashion-MNIST when it is first needed.
        learning_rate: Step size of Adam.
        regularization: Weight of the loss that the first hidden layer's activations add.
    """

    name = "mlp"

    def __init__(
        self, *, data: Mnist | str | None = None, learning_rate: float = 1e-3, regularization: float = 1e-2
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
                layers.ActivityRegularization(l1=self._regularization),
                layers.Dense(_HIDDEN, activation="relu"),
                layers.Dense(len(self.data.class_names)),
            ],
            name=self.name,
        )
        self.optimizer = keras.optimizers.Adam(self._learning_rate)
