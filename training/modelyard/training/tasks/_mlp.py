"""The task ``mlp``: a perceptron of two hidden layers, with metrics and a loss of the model's own.

Source: TensorFlow's guide "Writing a training loop from scratch" (Chollet, 2019). 784-64-64-10 with ReLU; the first
hidden layer is followed by a layer that adds ``1e-2`` times the sum of its activations, as a mean over the batch, to
the loss (``add_loss``). Cross-entropy of the logits ``[B, 10]``, Adam. Fashion-MNIST takes the place of the guide's
digits, and the step size, constant there, decays: after t steps it is ``1e-3 * 0.7^(t / 1000)``. With a constant one
the accuracy on test images falls again after a few epochs.

Measured: loss and accuracy by epoch, on training and test images.
"""

from __future__ import annotations

import keras

from modelyard.errors import ConfigurationError
from modelyard.training.data import Mnist
from modelyard.training.tasks.inputs import PIXELS, SIDE, ClassifierTask, FashionImagesTask

_HIDDEN = 64
_DECAY_STEPS = 1000


class MlpTask(ClassifierTask, FashionImagesTask):
    """A perceptron of two hidden layers on Fashion-MNIST.

    Args:
        data: Images, or a folder of them in MNIST's idx format; None loads Fashion-MNIST when it is first needed.
        learning_rate: Step size of Adam at the start.
        decay: What it is multiplied by in each 1,000 steps, smoothly; 1 keeps it constant.
        regularization: Weight of the loss that the first hidden layer's activations add.

    Raises:
        ConfigurationError: ``decay`` is not above 0 and at most 1.
    """

    name = "mlp"

    def __init__(
        self,
        *,
        data: Mnist | str | None = None,
        learning_rate: float = 1e-3,
        decay: float = 0.7,
        regularization: float = 1e-2,
    ) -> None:
        if not 0 < decay <= 1:
            raise ConfigurationError(f"decay is {decay}; expected a factor above 0 and at most 1.")
        super().__init__(data=data)
        self._learning_rate = learning_rate
        self._decay = decay
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
        self.optimizer = keras.optimizers.Adam(
            keras.optimizers.schedules.ExponentialDecay(self._learning_rate, _DECAY_STEPS, self._decay)
        )
