"""The task ``fashion``: a small convolutional network on Fashion-MNIST.

Source: the model and the training of TensorFlow's tutorial "Custom training with tf.distribute.Strategy" (2018), on the
images of Xiao, Rasul and Vollgraf, "Fashion-MNIST", 2017. Two convolutions of 32 and 64 filters 3x3, each halved by a
maximum, and dense layers of 64 and 10. Images ``[B, 28, 28, 1]`` from 0 to 1, logits ``[B, 10]``; the loss is their
cross-entropy; Adam at 1e-3, batches of 64.

Measured: loss and accuracy by epoch, on training and test images; in ``docs/results.md`` beside the tutorial's numbers.
After ten epochs the accuracy still moves by half a percent from epoch to epoch; ``--ema-decay 0.999``, an average of
the weights, is steadier and about a percent better.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from modelyard.artifact import DEFAULT_SIGNATURE, VerificationData
from modelyard.errors import ConfigurationError
from modelyard.training.data import Mnist
from modelyard.training.tasks.inputs import SIDE, ClassifierTask, FashionImagesTask, encode_variants
from modelyard.training.user import loss_scaled

IMAGE_BYTES = "image_bytes"
# ITU-R BT.601 luma. The weights add up to 1, so a grey image keeps its values.
_LUMA = (0.299, 0.587, 0.114)


class FashionTask(ClassifierTask, FashionImagesTask):
    """Ten kinds of clothes from 28 x 28 grey images.

    Args:
        data: Images, or a folder of them in MNIST's idx format; None loads Fashion-MNIST when it is first needed.
        learning_rate: Step size of Adam.

    Raises:
        ConfigurationError: The learning rate is not above 0.
    """

    name = "fashion"

    def __init__(self, *, data: Mnist | str | None = None, learning_rate: float = 1e-3) -> None:
        if not learning_rate > 0:
            raise ConfigurationError(f"learning_rate is {learning_rate}; expected a number above 0.")
        super().__init__(data=data)
        self._learning_rate = learning_rate

    @classmethod
    def search_space(cls, trial: Any) -> Mapping[str, Any]:
        """Adam's step size, and the batch size."""
        return {
            "learning_rate": trial.suggest_float("learning_rate", 1e-4, 1e-2, log=True),
            "batch_size": trial.suggest_categorical("batch_size", [32, 64, 128]),
        }

    def build(self) -> None:
        """Creates the network and its optimizer."""
        layers = keras.layers
        self.model = keras.Sequential(
            [
                keras.Input((SIDE, SIDE, 1), name="image"),
                layers.Conv2D(32, 3, activation="relu"),
                layers.MaxPooling2D(),
                layers.Conv2D(64, 3, activation="relu"),
                layers.MaxPooling2D(),
                layers.Flatten(),
                layers.Dense(64, activation="relu"),
                layers.Dense(len(self.data.class_names)),
            ],
            name=self.name,
        )
        self.optimizer = loss_scaled(keras.optimizers.Adam(self._learning_rate))

    def preprocess(self, image: tf.Tensor) -> tf.Tensor:
        """From uint8 ``[H, W, 3]`` to one example, float32 ``[28, 28, 1]`` from 0 to 1."""
        # No antialias: it has no equal in ONNX.
        small = tf.image.resize(image, [SIDE, SIDE], method="bilinear", antialias=False)
        grey = tf.reduce_sum(small * tf.constant(_LUMA), axis=-1, keepdims=True)
        return grey / 255.0

    def verification_data(self, count: int) -> VerificationData:
        """The first test images, as tensors and as files: grey PNG, RGB PNG, JPEG and in other sizes, in turn."""
        images = self.test_images(count)
        return VerificationData(
            inputs={
                DEFAULT_SIGNATURE: {"image": images},
                IMAGE_BYTES: {IMAGE_BYTES: encode_variants(self.data.test_images[:count])},
            },
            labels=self.data.test_labels[:count].astype(np.int64),
            class_names=self.data.class_names,
            description=f"first {len(images)} test images; {self.data.source}",
        )
