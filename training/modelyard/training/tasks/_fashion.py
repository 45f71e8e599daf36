"""The task ``fashion``: a small convolutional network on Fashion-MNIST.

Source: the model and the training of TensorFlow's tutorial "Custom training with
tf.distribute.Strategy" (2018), on the images of Xiao, Rasul and Vollgraf,
"Fashion-MNIST", 2017. Two convolutions of 32 and 64 filters 3x3, each halved by a
maximum, and dense layers of 64 and 10. Images ``[B, 28, 28, 1]`` from 0 to 1, logits
``[B, 10]``; the loss is their cross-entropy; Adam at 1e-3, batches of 64.

Measured: loss and accuracy by epoch, on training and test images; in
``docs/results.md`` beside the tutorial's numbers. After ten epochs the accuracy
still moves by half a percent from epoch to epoch; ``--ema-decay 0.999``, an
average of the weights, is steadier and about a percent better.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import keras
import numpy as np
import tensorflow as tf

from modelyard.artifact import (
    DEFAULT_SIGNATURE,
    EncodedImageFunction,
    SignatureFunction,
    TensorSpec,
    VerificationData,
)
from modelyard.errors import ConfigurationError
from modelyard.training._resident import ResidentData
from modelyard.training._step import average_loss, loss_scaled, minimize
from modelyard.training._task import InputRequest
from modelyard.training.data import FashionMnist
from modelyard.training.tasks._encode import encode_variants
from modelyard.training.tasks._images import SIDE, FashionImagesTask, hits

IMAGE_BYTES = "image_bytes"
# ITU-R BT.601 luma. The weights add up to 1, so a grey image keeps its values.
_LUMA = (0.299, 0.587, 0.114)


class FashionTask(FashionImagesTask):
    """Ten kinds of clothes from 28 x 28 grey images.

    Args:
        data: Images that are already loaded; None loads them when they are
            first needed.
        learning_rate: Step size of Adam.

    Raises:
        ConfigurationError: The learning rate is not above 0.
    """

    name: ClassVar[str] = "fashion"
    shares_input: ClassVar[bool] = True

    def __init__(self, *, data: FashionMnist | None = None, learning_rate: float = 1e-3) -> None:
        if not learning_rate > 0:
            raise ConfigurationError(f"learning_rate is {learning_rate}; expected a number above 0.")
        super().__init__(data=data)
        self._learning_rate = learning_rate

    @classmethod
    def search_space(cls, trial: Any) -> Mapping[str, Any]:
        """Adam's step size, and the batch size.

        Args:
            trial: An ``optuna.Trial``.
        """
        return {
            "learning_rate": trial.suggest_float("learning_rate", 1e-4, 1e-2, log=True),
            "batch_size": trial.suggest_categorical("batch_size", [32, 64, 128]),
        }

    def build(self) -> None:
        """Creates the network and its optimizer."""
        layers = keras.layers
        model = keras.Sequential(
            [
                keras.Input((SIDE, SIDE, 1)),
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
        optimizer = loss_scaled(keras.optimizers.Adam(self._learning_rate))
        optimizer.build(model.trainable_variables)
        self.keep(model=model, optimizer=optimizer)

    @property
    def model(self) -> keras.Model:
        """The network, from images to logits.

        Raises:
            TrainingError: :meth:`build` was not called.
        """
        return self.part("model")

    @property
    def root(self) -> tf.Module:
        """The network."""
        return self.model

    def train_step(self, batch: Any) -> Mapping[str, Any]:
        """One step of Adam on the mean cross-entropy of a batch.

        Args:
            batch: ``(images, labels)``: float32 ``[B, 28, 28, 1]``, int64 ``[B]``.

        Returns:
            ``loss`` and ``accuracy`` for each example, float32 ``[B]``.
        """
        images, labels = batch
        with tf.GradientTape() as tape:
            logits = tf.cast(self.model(images, training=True), tf.float32)
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
            loss = average_loss(losses)
        minimize(loss, self.model.trainable_variables, optimizer=self.part("optimizer"), tape=tape)
        return {"loss": losses, "accuracy": hits(labels, logits)}

    def eval_step(self, batch: Any) -> Mapping[str, Any]:
        """Loss and accuracy of a batch.

        Args:
            batch: As for :meth:`train_step`.

        Returns:
            ``loss`` and ``accuracy`` for each example, float32 ``[B]``.
        """
        images, labels = batch
        logits = tf.cast(self.model(images, training=False), tf.float32)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
        return {"loss": losses, "accuracy": hits(labels, logits)}

    def resident_data(self, request: InputRequest) -> ResidentData:
        """The training images as bytes, a quarter of what they are as float32.

        Args:
            request: The batch size.
        """
        return ResidentData(
            tensors=(tf.constant(self.data.train_images[..., np.newaxis]), tf.constant(self.data.train_labels)),
            batch_size=request.batch_size,
            prepare=lambda batch: (tf.cast(batch[0], tf.float32) / 255.0, tf.cast(batch[1], tf.int64)),
        )

    def signatures(self) -> Mapping[str, SignatureFunction | EncodedImageFunction]:
        """``serving_default`` on tensors, and ``image_bytes`` on encoded images of any size."""
        return {
            DEFAULT_SIGNATURE: SignatureFunction(
                inputs=(TensorSpec(name="image", dtype="float32", shape=(-1, SIDE, SIDE, 1)),),
                function=self._predict,
            ),
            IMAGE_BYTES: EncodedImageFunction(
                compute=DEFAULT_SIGNATURE, preprocess=_preprocess, input=IMAGE_BYTES, channels=3
            ),
        }

    def verification_data(self, count: int) -> VerificationData:
        """The first test images, as tensors and as encoded files.

        Args:
            count: How many, at most.

        Returns:
            For ``image_bytes`` the same images as grey PNG, RGB PNG, JPEG and
            in other sizes, in turn.

        Raises:
            ConfigurationError: ``count`` is below 1.
        """
        if count < 1:
            raise ConfigurationError(f"count is {count}; expected at least one example to verify with.")
        images, labels = self.data.test_images[:count], self.data.test_labels[:count]
        return VerificationData(
            inputs={
                DEFAULT_SIGNATURE: {"image": images[..., np.newaxis].astype(np.float32) / np.float32(255)},
                IMAGE_BYTES: {IMAGE_BYTES: encode_variants(images)},
            },
            labels=labels.astype(np.int64),
            class_names=self.data.class_names,
            description=f"first {len(images)} test images; {self.data.source}",
        )

    def _predict(self, image: tf.Tensor) -> Mapping[str, tf.Tensor]:
        logits = self.model(image, training=False)
        class_id = tf.argmax(logits, axis=-1, output_type=tf.int64)
        return {
            "class_id": class_id,
            "label": tf.gather(tf.constant(self.data.class_names), class_id),
            "probabilities": tf.nn.softmax(logits),
        }


def _preprocess(image: tf.Tensor) -> tf.Tensor:
    """From uint8 ``[H, W, 3]`` to one example, float32 ``[28, 28, 1]`` from 0 to 1."""
    # No antialias: it has no equal in ONNX.
    small = tf.image.resize(image, [SIDE, SIDE], method="bilinear", antialias=False)
    grey = tf.reduce_sum(small * tf.constant(_LUMA), axis=-1, keepdims=True)
    return grey / 255.0
