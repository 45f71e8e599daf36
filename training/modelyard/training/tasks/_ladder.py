"""The task ``ladder``: a few labels and many images without.

Source: Rasmus, Valpola, Honkala, Berglund and Raiko, "Semi-Supervised Learning with Ladder Networks", NeurIPS 2015. One
encoder is passed twice. For layers ``l = 1 .. L`` with weights W, scales gamma and shifts beta, on images ``h_0 = x``:

- clean: ``z_l = N(W_l h_(l-1))``, ``h_l = phi(gamma_l (z_l + beta_l))``, where N subtracts the batch's mean m_l and
  divides by its standard deviation s_l; phi is ReLU, and softmax at the top;
- noisy: the same with ``n ~ N(0, noise ** 2)`` added to the image and to each ``z_l``, written ``~z_l`` and ``~h_l``.

A decoder goes back down, with the noisy values as they were at each layer beside it:

- ``u_L = N(~h_L)``, ``u_l = N(V_(l+1) ^z_(l+1))``, ``^z_l = g(~z_l, u_l) = (~z_l - mu(u_l)) v(u_l) + mu(u_l)``, and for
  each unit ``mu(u) = a1 sigmoid(a2 u + a3) + a4 u + a5``; v is the same function with five parameters of its own;
- its cost: ``sum_l lambda_l mean((z_l - (^z_l - m_l) / s_l) ** 2)``, the mean over the units of a layer.

The loss is the cross-entropy of the noisy output for labelled images plus that cost for all others. Each step takes B
images without labels and B of the labelled ones, ``[B, 28, 28, 1]`` from 0 to 1. Predictions are the clean encoder's.
Beside it the same encoder, with the same noise, is trained on the labelled images alone: what images without labels
are worth is the difference.

Two things are not the source's. It has hidden layers of 1000, 500, 250, 250 and 250 units (``--set
hidden=[1000,500,250,250,250]``). And its lambdas, 1000 for the image, 10 and 0.1, are for digits: on 2,000 garments
with 100 labels, after 240 steps, they came to a test accuracy of 71.6 %, no better than without the decoder, 72.8 %;
10 for the image and 1 for each layer above it came to 75.7 % (seed 0; with seed 1 75.6 % against 72.8 %).

Measured: ``accuracy``, and ``supervised_accuracy`` of the net beside it; ``cost`` of the decoder. Images: test images,
the same with noise, and what the decoder makes of them; both accuracies by epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from modelyard.artifact import DEFAULT_SIGNATURE, SignatureFunction, VerificationData
from modelyard.errors import ConfigurationError
from modelyard.training.data import Mnist
from modelyard.training.plots import image_grid, save_curves
from modelyard.training.run import TrainResult
from modelyard.training.tasks.inputs import PIXELS, SIDE, FashionImagesTask, takes
from modelyard.training.user import InputRequest, average_loss, minimize

#: Of the image, and of each layer above it.
_LAMBDA_IMAGE, _LAMBDA = 10.0, 1.0
_EPSILON = 1e-6
_SHOWN = 10

Noise = Callable[[tf.Tensor], tf.Tensor]


class Passed(NamedTuple):
    """What one pass of the encoder leaves at a layer, ``[B, units]``: z, and the batch's mean and deviation."""

    z: tf.Tensor
    mean: tf.Tensor
    deviation: tf.Tensor


class Encoder(keras.layers.Layer):
    """Dense layers, each normalized, then scaled and shifted."""

    def __init__(self, sizes: Sequence[int], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        layers = keras.layers
        self.dense = [layers.Dense(size, use_bias=False) for size in sizes]
        # Of the clean pass; moving averages over some ten batches are for predictions.
        self.norms = [
            layers.BatchNormalization(center=False, scale=False, epsilon=_EPSILON, momentum=0.9) for _ in sizes
        ]
        self.scales = [Scale(activation) for activation in (*["relu"] * (len(sizes) - 1), None)]

    def call(self, images: tf.Tensor, noise: Noise | None = None, training: bool = False) -> tuple[Any, list[Passed]]:
        """Logits, and what was passed at each layer, the image first; the noisy pass where there is noise."""
        hidden = tf.reshape(images, [-1, PIXELS])
        hidden = hidden if noise is None else noise(hidden)
        passed = [Passed(z=hidden, mean=tf.zeros([]), deviation=tf.ones([]))]
        for dense, norm, scale in zip(self.dense, self.norms, self.scales, strict=True):
            before = dense(hidden)
            z, mean, deviation = normalized(before)
            z = norm(before, training=training) if noise is None else noise(z)
            passed.append(Passed(z=z, mean=mean, deviation=deviation))
            hidden = scale(z)
        return hidden, passed


class Scale(keras.layers.Layer):
    """``phi(gamma (z + beta))``."""

    def __init__(self, activation: str | None) -> None:
        super().__init__()
        self.activation = keras.activations.get(activation)

    def build(self, shape: tuple[int | None, ...]) -> None:
        self.gamma = self.add_weight(name="gamma", shape=shape[1:], initializer="ones")
        self.beta = self.add_weight(name="beta", shape=shape[1:], initializer="zeros")

    def call(self, z: tf.Tensor) -> tf.Tensor:
        return self.activation(self.gamma * (z + self.beta))


class Decoder(keras.layers.Layer):
    """From the noisy pass to the clean values of each layer."""

    def __init__(self, sizes: Sequence[int], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        # V of each layer but the top.
        self.dense = [keras.layers.Dense(size, use_bias=False) for size in sizes[:-1]]
        self.denoise = [Denoise() for _ in sizes]

    def call(self, noisy: Sequence[tf.Tensor], logits: tf.Tensor) -> list[tf.Tensor]:
        """Denoised values of each layer, ``[B, units]``, the image first; from those with noise, and their logits."""
        above = tf.nn.softmax(logits)
        found: list[tf.Tensor] = []
        for index in reversed(range(len(noisy))):
            found.insert(0, self.denoise[index](noisy[index], normalized(above)[0]))
            above = self.dense[index - 1](found[0]) if index else None
        return found


class Denoise(keras.layers.Layer):
    """``g(~z, u)``, with ten parameters for each unit."""

    def build(self, noisy_shape: tuple[int | None, ...], above_shape: tuple[int | None, ...]) -> None:
        def add(name: str) -> list[Any]:
            # a2 is 1 and all others are 0, as the source has it: what comes out is 0 to begin with.
            starts = ("zeros", "ones", "zeros", "zeros", "zeros")
            return [
                self.add_weight(name=f"{name}_{n}", shape=noisy_shape[1:], initializer=each)
                for n, each in enumerate(starts)
            ]

        self.mean, self.slope = add("mean"), add("slope")

    def call(self, noisy: tf.Tensor, above: tf.Tensor) -> tf.Tensor:
        mean, slope = (
            a * tf.sigmoid(b * above + c) + d * above + e for a, b, c, d, e in (tuple(self.mean), tuple(self.slope))
        )
        return (noisy - mean) * slope + mean


def normalized(values: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Values ``[B, units]`` less the batch's mean, divided by its standard deviation; and these two."""
    mean, variance = tf.nn.moments(values, axes=[0])
    deviation = tf.sqrt(variance + _EPSILON)
    return (values - mean) / deviation, mean, deviation


class LadderTask(FashionImagesTask):
    """A ladder network on Fashion-MNIST, with the supervised net of the same labels beside it.

    Args:
        data: Images, or a folder of them in MNIST's idx format; None loads Fashion-MNIST when it is first needed.
        labels: How many images keep their labels: the first of each class, of each the same number.
        hidden: Units of the hidden layers.
        noise: Standard deviation of the noise in the image and in each layer.
        weight: What lambda is multiplied by; 0 leaves images without labels unused.
        learning_rate: Step size of Adam.

    Raises:
        ConfigurationError: The labels are not the same number, above 0, for each class.
    """

    name = "ladder"
    recipe = {"batch_size": 100, "epochs": 10}
    full_recipe = {"epochs": 150}

    def __init__(
        self,
        *,
        data: Mnist | str | None = None,
        labels: int = 100,
        hidden: tuple[int, ...] = (200, 100),
        noise: float = 0.3,
        weight: float = 1.0,
        learning_rate: float = 2e-3,
    ) -> None:
        super().__init__(data=data)
        self._labels = labels
        self._hidden = hidden
        self._noise = noise
        self._weight = weight
        self._learning_rate = learning_rate

    def build(self) -> None:
        """Creates the encoder with its decoder, the supervised net, an optimizer each, and the source of noise."""
        sizes = (*self._hidden, len(self.data.class_names))
        self.encoder, self.supervised = Encoder(sizes, name="encoder"), Encoder(sizes, name="supervised")
        self.decoder = Decoder((PIXELS, *sizes), name="decoder")
        for encoder in (self.encoder, self.supervised):
            logits, passed = encoder(tf.zeros([1, SIDE, SIDE, 1]))
        self.decoder([layer.z for layer in passed], logits)
        self.optimizer, self.supervised_optimizer = (keras.optimizers.Adam(self._learning_rate) for _ in range(2))
        self.optimizer.build(self._variables)
        self.supervised_optimizer.build(self.supervised.trainable_variables)
        (self.random,) = tf.random.get_global_generator().split(1)

    def train_dataset(self, request: InputRequest) -> tf.data.Dataset:
        """``(images, labelled, labels)``: a batch without labels, and as many images drawn from the labelled ones."""
        rows = self.labelled()
        images = tf.constant(self.data.train_images[rows][..., np.newaxis], tf.float32) / 255.0
        labels = tf.constant(self.data.train_labels[rows], tf.int64)

        def add(index: tf.Tensor, batch: tuple[tf.Tensor, tf.Tensor]) -> tuple[tf.Tensor, ...]:
            seed = tf.stack([tf.cast(request.seed * 1_000_003 + request.epoch, tf.int64), index])
            count = batch[0].shape[0] or tf.shape(batch[0])[0]
            drawn = tf.random.stateless_uniform([count], seed, maxval=len(rows), dtype=tf.int32)
            return batch[0], tf.gather(images, drawn), tf.gather(labels, drawn)

        numbers = tf.data.Dataset.counter(request.skip_batches)
        return tf.data.Dataset.zip(numbers, super().train_dataset(request)).map(add, num_parallel_calls=2)

    def resident_data(self, request: InputRequest) -> None:
        """None: Labelled images are drawn by :meth:`train_dataset`."""
        return None

    def labelled(self) -> npt.NDArray[np.int64]:
        """The rows of the training images whose labels are used."""
        labels, classes = self.data.train_labels, len(self.data.class_names)
        each, left = divmod(self._labels, classes)
        if each < 1 or left:
            raise ConfigurationError(
                f"labels is {self._labels}; expected a multiple of the {classes} classes, above 0."
            )
        return np.concatenate([np.flatnonzero(labels == index)[:each] for index in range(classes)])

    def train_step(self, batch: tuple[tf.Tensor, ...]) -> Mapping[str, tf.Tensor]:
        """One step of Adam of the ladder, and one of the supervised net.

        Args:
            batch: ``(images, labelled, labels)``: float32 ``[B, 28, 28, 1]`` twice, and int64 ``[B]``.

        Returns:
            ``loss``, ``cost`` and ``supervised_loss`` of each example, float32 ``[B]``.
        """
        images, labelled, labels = batch
        with tf.GradientTape() as tape:
            logits, _ = self.encoder(labelled, noise=self._add_noise)
            cost = self._cost(images)
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits) + self._weight * cost
            loss = average_loss(losses)
        minimize(loss, self._variables, optimizer=self.optimizer, tape=tape)
        with tf.GradientTape() as tape:
            logits, _ = self.supervised(labelled, noise=self._add_noise)
            supervised_losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
            loss = average_loss(supervised_losses)
        minimize(loss, self.supervised.trainable_variables, optimizer=self.supervised_optimizer, tape=tape)
        # For its moving averages, which are of what it was trained on.
        self.supervised(labelled, training=True)
        return {"loss": losses, "cost": cost, "supervised_loss": supervised_losses}

    def eval_step(self, batch: tuple[tf.Tensor, ...]) -> Mapping[str, tf.Tensor]:
        """Cross-entropy and accuracy of the ladder's clean encoder and of the supervised net, float32 ``[B]``."""
        images, labels = batch
        values: dict[str, tf.Tensor] = {}
        for prefix, encoder in (("", self.encoder), ("supervised_", self.supervised)):
            logits, _ = encoder(images)
            values[f"{prefix}loss"] = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
            values[f"{prefix}accuracy"] = keras.metrics.sparse_categorical_accuracy(labels, logits)
        return values

    def predict(self, image: tf.Tensor) -> Mapping[str, tf.Tensor]:
        """Class and probabilities, by the clean encoder."""
        logits, _ = self.encoder(image)
        class_id = tf.argmax(logits, axis=-1, output_type=tf.int64)
        label = tf.gather(tf.constant(self.data.class_names), class_id)
        return {"class_id": class_id, "label": label, "probabilities": tf.nn.softmax(logits)}

    def signatures(self) -> Mapping[str, SignatureFunction]:
        """``serving_default``: an image to its class."""
        return {DEFAULT_SIGNATURE: takes(self.predict, image=(SIDE, SIDE, 1))}

    def verification_data(self, count: int) -> VerificationData:
        """The first test images."""
        return self.verification({DEFAULT_SIGNATURE: {"image": self.test_images(count)}})

    def pictures(self) -> Mapping[str, npt.NDArray[np.uint8]]:
        """Ten test images, the same with noise, and without it again."""
        images = tf.constant(self.test_images(10 * _SHOWN))
        logits, noisy = self.encoder(images, noise=lambda z: z + self._noise * _same_noise(z))
        denoised = self.decoder([layer.z for layer in noisy], logits)
        rows = [tf.reshape(each, images.shape)[:_SHOWN] for each in (images, noisy[0].z, denoised[0])]
        return {"denoised": image_grid(np.concatenate(rows), columns=_SHOWN)}

    def draw(self, result: TrainResult, folder: Path) -> list[Path]:
        """Writes the images, and the accuracy of both nets by epoch."""
        path = folder / "accuracy.png"
        series = {
            f"ladder, {self._labels} labels and {len(self.data.train_images):,} images": "accuracy",
            f"supervised, {self._labels} labels": "supervised_accuracy",
        }
        curves = {name: [epoch.evaluation[key] for epoch in result.history] for name, key in series.items()}
        save_curves({"test accuracy": curves}, path, title="What images without labels are worth")
        return [*super().draw(result, folder), path]

    @property
    def _variables(self) -> list[tf.Variable]:
        return [*self.encoder.trainable_variables, *self.decoder.trainable_variables]

    def _cost(self, images: tf.Tensor) -> tf.Tensor:
        """What the decoder fails to bring back, of each image."""
        _, clean = self.encoder(images, training=True)
        logits, noisy = self.encoder(images, noise=self._add_noise)
        denoised = self.decoder([layer.z for layer in noisy], logits)
        weights = (_LAMBDA_IMAGE, *[_LAMBDA] * (len(denoised) - 1))
        return tf.add_n(
            [
                weight * tf.reduce_mean(tf.square(layer.z - (guess - layer.mean) / layer.deviation), axis=1)
                for weight, layer, guess in zip(weights, clean, denoised, strict=True)
            ]
        )

    def _add_noise(self, z: tf.Tensor) -> tf.Tensor:
        return z + self._noise * self.random.normal(tf.shape(z))


def _same_noise(z: tf.Tensor) -> tf.Tensor:
    return tf.random.stateless_normal(tf.shape(z), seed=[20_15, 0])
