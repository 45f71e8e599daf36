"""The task ``siamese``: twin encoders that put alike images close together.

Source: Hadsell, Chopra and LeCun, "Dimensionality Reduction by Learning an Invariant Mapping", CVPR 2006. One
convolutional encoder, applied to both images of a pair, makes unit vectors ``[B, 64]``; the contrastive loss of a pair
at distance d is ``d ** 2`` for the same class and ``max(0, margin - d) ** 2`` for two classes, with a margin of 1.
Pairs are made inside a batch of images ``[B, 28, 28, 1]``: each with one drawn from its own class and one from another.

Measured: verification accuracy, the share of unseen pairs (test images, half of them of the same class) that a distance
below half the margin tells right. Image: vectors of test images in the plane of their principal components.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from modelyard.artifact import DEFAULT_SIGNATURE, SignatureFunction, VerificationData
from modelyard.errors import ConfigurationError
from modelyard.training.data import Arrays, Mnist
from modelyard.training.plots import save_embedding
from modelyard.training.run import TrainResult
from modelyard.training.tasks.inputs import SIDE, FashionImagesTask, takes
from modelyard.training.user import InputRequest, average_loss, minimize

_PAIRS_SEED = 20_06
_DRAWN = 2000


class SiameseTask(FashionImagesTask):
    """Tells whether two images show the same kind of garment.

    Args:
        data: Images, or a folder of them in MNIST's idx format; None loads Fashion-MNIST when it is first needed.
        margin: How far apart images of two classes must be; a distance below half of it means the same class.
        embedding: Numbers in the vector of an image.
        learning_rate: Step size of Adam.

    Raises:
        ConfigurationError: The margin is not above 0.
    """

    name = "siamese"
    recipe = {"batch_size": 128, "epochs": 5}

    def __init__(
        self,
        *,
        data: Mnist | str | None = None,
        margin: float = 1.0,
        embedding: int = 64,
        learning_rate: float = 1e-3,
    ) -> None:
        super().__init__(data=data)
        if not margin > 0:
            raise ConfigurationError(f"margin is {margin}; expected a distance above 0.")
        self._margin = margin
        self._embedding = embedding
        self._learning_rate = learning_rate

    def build(self) -> None:
        """Creates the encoder and its optimizer."""
        layers = keras.layers
        self.encoder = keras.Sequential(
            [
                keras.Input((SIDE, SIDE, 1)),
                layers.Conv2D(32, 3, activation="relu"),
                layers.MaxPooling2D(),
                layers.Conv2D(64, 3, activation="relu"),
                layers.MaxPooling2D(),
                layers.Flatten(),
                layers.Dense(128, activation="relu"),
                layers.Dense(self._embedding),
                layers.UnitNormalization(),
            ],
            name="encoder",
        )
        self.optimizer = keras.optimizers.Adam(self._learning_rate)

    def train_dataset(self, request: InputRequest) -> tf.data.Dataset:
        """Pairs: ``(first, second, same)``, twice as many as images, half of them of the same class."""
        first = self.data.train_images[..., np.newaxis]
        partners = tf.constant(first)
        rows = _rows_by_class(self.data.train_labels)

        def pair(index: tf.Tensor, batch: tuple[tf.Tensor, tf.Tensor]) -> tuple[tf.Tensor, ...]:
            images, labels = batch
            seed = tf.stack([tf.cast(request.seed * 1_000_003 + request.epoch, tf.int64), index])
            same = tf.range(tf.shape(labels)[0]) % 2 == 0
            draws = tf.random.stateless_uniform([3, tf.shape(labels)[0]], seed)
            others = (labels + 1 + tf.cast(draws[0] * (len(rows) - 1), labels.dtype)) % len(rows)
            wanted = tf.where(same, labels, others)
            # Rows differ in length: classes need not be of the same size.
            chosen = tf.gather(rows, wanted)
            position = tf.cast(draws[1] * tf.cast(chosen.row_lengths(), tf.float32), tf.int64)
            second = tf.gather(partners, tf.gather(chosen, position[:, tf.newaxis], batch_dims=1)[:, 0])
            return images, tf.cast(second, tf.float32) / 255.0, tf.cast(same, tf.float32)

        batches = super().train_dataset(request)
        numbers = tf.data.Dataset.counter(request.skip_batches)
        return tf.data.Dataset.zip(numbers, batches).map(lambda n, batch: pair(n, batch), num_parallel_calls=2)

    def resident_data(self, request: InputRequest) -> None:
        """None: Pairs are drawn by :meth:`train_dataset`."""
        return None

    @cached_property
    def test(self) -> Arrays:
        """Pairs of test images, the same ones each time, half of them of the same class."""
        return Arrays(
            self.test_pairs(),
            prepare=lambda pair: (tf.cast(pair[0], tf.float32) / 255.0, tf.cast(pair[1], tf.float32) / 255.0, pair[2]),
        )

    def train_step(self, batch: tuple[tf.Tensor, ...]) -> Mapping[str, tf.Tensor]:
        """One step of Adam on the mean contrastive loss of a batch of pairs.

        Args:
            batch: ``(first, second, same)``: float32 ``[B, 28, 28, 1]`` twice, float32 ``[B]`` of 0 and 1.

        Returns:
            ``loss`` and ``accuracy`` of each pair, float32 ``[B]``.
        """
        first, second, same = batch
        with tf.GradientTape() as tape:
            vectors = (self.encoder(image, training=self.training) for image in (first, second))
            distance = _distances(*vectors)
            losses = same * tf.square(distance) + (1 - same) * tf.square(tf.maximum(self._margin - distance, 0.0))
            loss = average_loss(losses)
        minimize(loss, self.encoder.trainable_variables, optimizer=self.optimizer, tape=tape)
        right = tf.cast(distance < self._margin / 2, tf.float32) == same
        return {"loss": losses, "accuracy": tf.cast(right, tf.float32)}

    def signatures(self) -> Mapping[str, SignatureFunction]:
        """``embed``: an image to its vector; ``distance``, the default too: two images to distance and verdict."""
        shape = (SIDE, SIDE, 1)
        distance = takes(self._distance_signature, first=shape, second=shape)
        embed = takes(lambda image: {"embedding": self._embed(image)}, image=shape)
        return {"distance": distance, "embed": embed, DEFAULT_SIGNATURE: distance}

    def verification_data(self, count: int) -> VerificationData:
        """The first test images, in pairs with one another."""
        images = self.test_images(count)
        pairs = {"first": images, "second": np.roll(images, 1, axis=0)}
        return self.verification({"embed": {"image": images}, "distance": pairs, DEFAULT_SIGNATURE: pairs})

    def draw(self, result: TrainResult, folder: Path) -> list[Path]:
        """Draws the vectors of test images in the plane, coloured by class."""
        path = folder / "embedding.png"
        vectors = np.asarray(self._embed(tf.constant(self.test_images(_DRAWN))))
        labels, names = self.data.test_labels[: len(vectors)], self.data.class_names
        save_embedding(vectors, labels, path, title="Test images", names=names)
        return [*super().draw(result, folder), path]

    def test_pairs(self) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8], npt.NDArray[np.float32]]:
        """Each test image with another: of its class for those of even number, of another class for the others.

        uint8 ``[N, 28, 28, 1]`` twice, and 1 for the same class, float32 ``[N]``.
        """
        random = np.random.default_rng(_PAIRS_SEED)
        labels = self.data.test_labels.astype(np.int64)
        rows = [np.flatnonzero(labels == index) for index in range(len(self.data.class_names))]
        same = (np.arange(len(labels)) % 2 == 0).astype(np.float32)
        others = (labels + random.integers(1, len(rows), len(labels))) % len(rows)
        wanted = np.where(same == 1, labels, others)
        second = np.array([random.choice(rows[index]) for index in wanted])
        images = self.data.test_images[..., np.newaxis]
        return images, images[second], same

    def _embed(self, image: tf.Tensor) -> tf.Tensor:
        return self.encoder(image, training=False)

    def _distance_signature(self, first: tf.Tensor, second: tf.Tensor) -> Mapping[str, tf.Tensor]:
        distance = _distances(self._embed(first), self._embed(second))
        return {"distance": distance, "same": distance < self._margin / 2}


def _distances(a: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
    # The root of 0 has no gradient.
    return tf.sqrt(tf.maximum(tf.reduce_sum(tf.square(a - b), axis=-1), 1e-12))


def _rows_by_class(labels: npt.NDArray[Any]) -> tf.RaggedTensor:
    order = np.argsort(labels, kind="stable").astype(np.int64)
    return tf.RaggedTensor.from_row_lengths(order, np.bincount(labels).astype(np.int64))
