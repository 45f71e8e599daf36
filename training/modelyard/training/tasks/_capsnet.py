"""The task ``capsnet``: capsules with dynamic routing.

Source: Sabour, Frosst and Hinton, "Dynamic Routing Between Capsules", NeurIPS 2017. Convolution of 256 filters 9x9;
32 x 6 x 6 primary capsules of 8 dimensions (9x9, stride 2); one capsule of 16 dimensions per class, by 3 iterations of
routing. The length of a class capsule is the class's score. Margin loss
``T max(0, 0.9 - |v|)^2 + 0.5 (1 - T) max(0, |v| - 0.1)^2``, plus 0.0005 times the summed squared error of a
reconstruction 512-1024-784 from the capsule of the true class, all others masked. Adam. Images ``[B, 28, 28, 1]`` from
0 to 1, class capsules ``[B, 10, 16]``.

Measured: accuracy, and the total, margin and reconstruction losses, each as a curve. ``--full`` trains at the paper's
sizes for 50 epochs of 600 steps of 100; a step takes 1.4 s of processor time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from modelyard.errors import ConfigurationError
from modelyard.training.data import Mnist
from modelyard.training.plots import image_grid
from modelyard.training.tasks.inputs import PIXELS, SIDE, FashionImagesTask
from modelyard.training.user import average_loss, minimize

_DIM_PRIMARY, _DIM_CLASS = 8, 16
_UPPER, _LOWER, _DOWN = 0.9, 0.1, 0.5
_RECONSTRUCTION = 0.0005
_SHOWN = 10


class ClassCapsules(keras.layers.Layer):
    """Capsules of the classes, by routing between them and the primary capsules."""

    def __init__(self, classes: int, iterations: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.classes = classes
        self.iterations = iterations

    def build(self, shape: tuple[int | None, ...]) -> None:
        """Creates the matrices from each primary capsule to each class, ``[capsules, 8, classes * 16]``."""
        self.matrices = self.add_weight(
            name="matrices",
            shape=(shape[1], shape[2], self.classes * _DIM_CLASS),
            initializer=keras.initializers.RandomNormal(stddev=0.1),
        )

    def call(self, capsules: tf.Tensor) -> tf.Tensor:
        """Routes by agreement: float32 ``[B, N, 8]`` to ``[B, classes, 16]``."""
        # [N, B, classes * 16], one matrix product for each primary capsule.
        votes = tf.matmul(tf.transpose(capsules, [1, 0, 2]), self.matrices)
        votes = tf.reshape(tf.transpose(votes, [1, 0, 2]), [-1, capsules.shape[1], self.classes, _DIM_CLASS])
        # Only the last iteration is differentiated, as in the paper's own program.
        fixed = tf.stop_gradient(votes)
        logits = tf.zeros_like(fixed[..., :1])
        for _ in range(self.iterations - 1):
            agreed = squash(tf.reduce_sum(tf.nn.softmax(logits, axis=2) * fixed, axis=1, keepdims=True))
            logits += tf.reduce_sum(fixed * agreed, axis=-1, keepdims=True)
        return squash(tf.reduce_sum(tf.nn.softmax(logits, axis=2) * votes, axis=1))


def squash(vectors: tf.Tensor) -> tf.Tensor:
    """Scales lengths of ``[..., D]`` to between 0 and 1: ``|s|^2 / (1 + |s|^2) * s / |s|``, equation 1."""
    squared = tf.reduce_sum(tf.square(vectors), axis=-1, keepdims=True)
    return squared / (1.0 + squared) * vectors / tf.sqrt(squared + 1e-9)


class CapsnetTask(FashionImagesTask):
    """Capsule network on Fashion-MNIST.

    Args:
        data: Images, or a folder of them in MNIST's idx format; None loads Fashion-MNIST when it is first needed.
        filters: Of the first convolution; the paper has 256.
        capsule_maps: Maps of primary capsules; the paper has 32.
        iterations: Of routing.
        learning_rate: Step size of Adam.

    Raises:
        ConfigurationError: There is no iteration.
    """

    name = "capsnet"
    recipe = {"batch_size": 100, "epochs": 1}
    full_recipe = {"epochs": 50}

    def __init__(
        self,
        *,
        data: Mnist | str | None = None,
        filters: int = 256,
        capsule_maps: int = 32,
        iterations: int = 3,
        learning_rate: float = 1e-3,
    ) -> None:
        super().__init__(data=data)
        if iterations < 1:
            raise ConfigurationError(f"iterations is {iterations}; expected at least 1 of routing.")
        self._filters = filters
        self._maps = capsule_maps
        self._iterations = iterations
        self._learning_rate = learning_rate

    def build(self) -> None:
        """Creates capsules, decoder and their optimizer."""
        layers = keras.layers
        classes = len(self.data.class_names)
        self.capsules = keras.Sequential(
            [
                keras.Input((SIDE, SIDE, 1), name="image"),
                layers.Conv2D(self._filters, 9, activation="relu"),
                layers.Conv2D(self._maps * _DIM_PRIMARY, 9, strides=2),
                layers.Reshape((-1, _DIM_PRIMARY)),
                layers.Lambda(squash, name="squash"),
                ClassCapsules(classes, self._iterations),
            ],
            name="capsules",
        )
        self.decoder = keras.Sequential(
            [
                keras.Input((classes * _DIM_CLASS,)),
                layers.Dense(512, activation="relu"),
                layers.Dense(1024, activation="relu"),
                layers.Dense(PIXELS, activation="sigmoid"),
                layers.Reshape((SIDE, SIDE, 1)),
            ],
            name="decoder",
        )
        self.optimizer = keras.optimizers.Adam(self._learning_rate)

    def train_step(self, batch: tuple[tf.Tensor, ...]) -> Mapping[str, tf.Tensor]:
        """``loss``, ``margin``, ``reconstruction``, ``accuracy`` of each example, float32 ``[B]``; a step of Adam."""
        images, labels = batch
        with tf.GradientTape() as tape:
            vectors = self.capsules(images, training=self.training)
            lengths = tf.norm(vectors, axis=-1)
            truth = tf.one_hot(labels, vectors.shape[1])
            present = truth * tf.square(tf.maximum(_UPPER - lengths, 0.0))
            absent = _DOWN * (1 - truth) * tf.square(tf.maximum(lengths - _LOWER, 0.0))
            margin = tf.reduce_sum(present + absent, axis=-1)
            again = self._decode(vectors, truth)
            reconstruction = tf.reduce_sum(tf.square(again - images), axis=[1, 2, 3])
            losses = margin + _RECONSTRUCTION * reconstruction
            loss = average_loss(losses)
        variables = [*self.capsules.trainable_variables, *self.decoder.trainable_variables]
        minimize(loss, variables, optimizer=self.optimizer, tape=tape)
        return {
            "loss": losses,
            "margin": margin,
            "reconstruction": reconstruction,
            "accuracy": keras.metrics.sparse_categorical_accuracy(labels, lengths),
        }

    def predict(self, inputs: Any) -> Mapping[str, tf.Tensor]:
        """Class, lengths of the class capsules, and the reconstruction of images."""
        vectors = self.capsules(inputs, training=False)
        lengths = tf.norm(vectors, axis=-1)
        class_id = tf.argmax(lengths, axis=-1, output_type=tf.int64)
        again = self._decode(vectors, tf.one_hot(class_id, vectors.shape[1]))
        return {"class_id": class_id, "lengths": lengths, "reconstruction": again}

    def pictures(self) -> Mapping[str, npt.NDArray[np.uint8]]:
        """Ten test images over their reconstructions."""
        images = self.test_images(_SHOWN)
        again = self.predict(tf.constant(images))["reconstruction"].numpy()
        return {"reconstructions": image_grid(np.concatenate([images, again]), columns=_SHOWN)}

    def _decode(self, vectors: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
        size = vectors.shape[1] * vectors.shape[2]
        return self.decoder(tf.reshape(vectors * mask[..., tf.newaxis], [-1, size]))
