"""The task ``vae``: a variational autoencoder.

Source: Kingma and Welling, "Auto-Encoding Variational Bayes", 2013, with the network and the training of Metzen's
tutorial "Variational Autoencoder in TensorFlow", 2015: 784-500-500-z and back, softplus, a Bernoulli decoder (logits
``[B, 784]``), Adam at 1e-3, batches of 100, z in 2, 5, 10 or 20. Loss: the negative ELBO in nats,
``-E_q[log p(x | z)] + KL(q(z | x) || N(0, I))``, with one sample of z by the reparametrisation
``z = mean + exp(log_variance / 2) eps``: what the tutorial prints by epoch, too.

Measured on test images with K = 50 samples of z from q for each, the same samples each time: the ELBO by epoch, its two
parts, and the importance-weighted bound ``log mean_k w_k`` with ``w_k = p(x | z_k) p(z_k) / q(z_k | x)`` (Burda, Grosse
and Salakhutdinov, "Importance Weighted Autoencoders", 2015). On average ``ELBO <= bound <= log p(x)``, and the bound
comes to ``log p(x)`` as K grows. Grey values are taken for probabilities, as in the tutorial, so these numbers compare
with others on the same data and no others.

Images: reconstructions, a 20 x 20 grid over two latent dimensions, ways between test images, sums and differences of
classes, the latent means of the test images. ``--full`` trains for 75 epochs: 11 minutes of processor time.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from modelyard.artifact import DEFAULT_SIGNATURE, SignatureFunction, VerificationData
from modelyard.errors import ConfigurationError
from modelyard.training.data import Mnist
from modelyard.training.plots import image_grid, save_curves, save_scatter
from modelyard.training.run import TrainResult
from modelyard.training.tasks.inputs import PIXELS, SIDE, FashionImagesTask, sums, takes, ways
from modelyard.training.user import average_loss, minimize

_HIDDEN = 500
_GRID = 20
_SHOWN = 10
_SCATTERED = 2000
_EVAL_SEED = 1


class VaeTask(FashionImagesTask):
    """A variational autoencoder of Fashion-MNIST.

    Args:
        data: Images, or a folder of them in MNIST's idx format; None loads Fashion-MNIST when it is first needed.
        latent: Dimensions of z.
        learning_rate: Step size of Adam.
        samples: How many z are drawn for each image in evaluation, K.

    Raises:
        ConfigurationError: ``latent`` is below 2, or ``samples`` below 1.
    """

    name = "vae"
    recipe = {"batch_size": 100, "epochs": 10}
    full_recipe = {"epochs": 75}

    def __init__(
        self, *, data: Mnist | str | None = None, latent: int = 2, learning_rate: float = 1e-3, samples: int = 50
    ) -> None:
        super().__init__(data=data)
        if latent < 2:
            raise ConfigurationError(f"latent is {latent}; expected at least 2 dimensions.")
        if samples < 1:
            raise ConfigurationError(f"samples is {samples}; expected at least one z for each image.")
        self._latent = latent
        self._learning_rate = learning_rate
        self._samples = samples

    def build(self) -> None:
        """Creates encoder, decoder, their optimizer and the source of random numbers."""
        layers = keras.layers
        encoder = keras.Sequential(
            [
                keras.Input((SIDE, SIDE, 1)),
                layers.Reshape((PIXELS,)),
                layers.Dense(_HIDDEN, activation="softplus"),
                layers.Dense(_HIDDEN, activation="softplus"),
                layers.Dense(2 * self._latent),
            ],
            name="encoder",
        )
        decoder = keras.Sequential(
            [
                keras.Input((self._latent,)),
                layers.Dense(_HIDDEN, activation="softplus"),
                layers.Dense(_HIDDEN, activation="softplus"),
                layers.Dense(PIXELS),
                layers.Reshape((SIDE, SIDE, 1)),
            ],
            name="decoder",
        )
        self.encoder, self.decoder = encoder, decoder
        self.optimizer = keras.optimizers.Adam(self._learning_rate)
        (self.random,) = tf.random.get_global_generator().split(1)

    def train_step(self, batch: tuple[tf.Tensor, ...]) -> Mapping[str, tf.Tensor]:
        """``loss``, ``reconstruction`` and ``divergence`` of each example, in nats; a step of Adam on the first."""
        images, _ = batch
        noise = self.random.normal([tf.shape(images)[0], self._latent])
        with tf.GradientTape() as tape:
            values, _ = self._elbo(images, noise, training=True)
            loss = average_loss(values["loss"])
        variables = [*self.encoder.trainable_variables, *self.decoder.trainable_variables]
        minimize(loss, variables, optimizer=self.optimizer, tape=tape)
        return values

    def eval_step(self, batch: tuple[tf.Tensor, ...]) -> Mapping[str, tf.Tensor]:
        """The same as averages over K samples of z, and ``importance_weighted_loss``; of each example, in nats."""
        images, _ = batch
        noise = tf.random.stateless_normal([self._samples, tf.shape(images)[0], self._latent], seed=[_EVAL_SEED, 0])
        floats = tf.TensorSpec([None], tf.float32)
        # One sample after the other: decoded all at once, those of a batch would fill gigabytes.
        values, log_weights = tf.map_fn(
            lambda drawn: self._elbo(images, drawn, training=False),
            noise,
            fn_output_signature=(dict.fromkeys(("loss", "reconstruction", "divergence"), floats), floats),
        )
        bound = tf.reduce_logsumexp(log_weights, axis=0) - math.log(self._samples)
        averages = {name: tf.reduce_mean(each, axis=0) for name, each in values.items()}
        return {**averages, "importance_weighted_loss": -bound}

    def signatures(self) -> Mapping[str, SignatureFunction]:
        """``encode``, ``decode`` and ``reconstruct``; ``serving_default`` reconstructs too.

        Reconstructions go through the mean of q: no signature draws random numbers.
        """
        reconstruct = takes(self._reconstruct, image=(SIDE, SIDE, 1))
        return {
            "decode": takes(self._decode, z=(self._latent,)),
            "encode": takes(self._encode, image=(SIDE, SIDE, 1)),
            "reconstruct": reconstruct,
            DEFAULT_SIGNATURE: reconstruct,
        }

    def verification_data(self, count: int) -> VerificationData:
        """The first test images, and latent vectors from N(0, I)."""
        images = {"image": self.test_images(count)}
        z = np.random.default_rng(0).normal(size=(len(images["image"]), self._latent)).astype(np.float32)
        return self.verification(
            {"encode": images, "decode": {"z": z}, "reconstruct": images, DEFAULT_SIGNATURE: images}
        )

    def pictures(self) -> Mapping[str, npt.NDArray[np.uint8]]:
        """Of test images: reconstructions, ways between them, sums of classes' means; the grid over two dimensions."""
        images = self.test_images(_SHOWN)
        again = self._reconstruct(tf.constant(images))["reconstruction"].numpy()
        normal = statistics.NormalDist()
        # Equal steps of probability, as N(0, I) has most of its mass in the middle.
        axis = [normal.inv_cdf((index + 0.5) / _GRID) for index in range(_GRID)]
        z = np.zeros((_GRID * _GRID, self._latent), np.float32)
        z[:, 0], z[:, 1] = np.tile(axis, _GRID), np.repeat(axis, _GRID)
        count = min(_SCATTERED, len(self.data.test_images))
        means, labels = self._means(count), self.data.test_labels[:count]
        share = np.linspace(0, 1, _SHOWN)
        between = ways(means[: _SHOWN // 2], means[_SHOWN // 2 : _SHOWN], np.stack([1 - share, share], axis=1))
        by_class = {name: means[labels == label].mean(axis=0) for label, name in enumerate(self.data.class_names)}
        return {
            "reconstructions": image_grid(np.concatenate([images, again]), columns=_SHOWN),
            "latent_grid": image_grid(self._decoded(z), columns=_GRID, gap=0),
            "interpolation": image_grid(self._decoded(between), columns=_SHOWN),
            "arithmetic": image_grid(self._decoded(sums(by_class)), columns=4),
        }

    def draw(self, result: TrainResult, folder: Path) -> list[Path]:
        """Writes the images, the latent means of the test images, and the ELBO by epoch."""
        written = super().draw(result, folder)
        means = self._means(_SCATTERED)
        scatter, curves = folder / "latent_scatter.png", folder / "elbo.png"
        names = self.data.class_names
        save_scatter(
            means[:, :2], self.data.test_labels[: len(means)], scatter, title="Means of q(z | x), test", names=names
        )
        series = {
            "ELBO, training": [-epoch.train["loss"] for epoch in result.history],
            "ELBO, test": [-epoch.evaluation["loss"] for epoch in result.history],
            f"test, {self._samples} importance-weighted samples": [
                -epoch.evaluation["importance_weighted_loss"] for epoch in result.history
            ],
        }
        save_curves({"nats": series}, curves, title="Lower bounds of log p(x)")
        return [*written, scatter, curves]

    def _elbo(self, images: tf.Tensor, noise: tf.Tensor, *, training: bool) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
        """The negative ELBO with its parts, and ``log(p(x | z) p(z) / q(z | x))``, of one z for each image."""
        mean, log_variance = tf.split(self.encoder(images, training=training), 2, axis=-1)
        z = mean + tf.exp(log_variance / 2) * noise
        logits = self.decoder(z, training=training)
        errors = tf.nn.sigmoid_cross_entropy_with_logits(labels=images, logits=logits)
        reconstruction = tf.reduce_sum(errors, axis=[1, 2, 3])
        divergence = tf.reduce_sum(tf.square(mean) + tf.exp(log_variance) - 1 - log_variance, axis=-1) / 2
        # Of two normal densities; their constants cancel.
        log_ratio = tf.reduce_sum(tf.square(z) - tf.square(noise) - log_variance, axis=-1) / 2
        losses = {"loss": reconstruction + divergence, "reconstruction": reconstruction, "divergence": divergence}
        return losses, -reconstruction - log_ratio

    def _means(self, count: int) -> npt.NDArray[np.float32]:
        means: npt.NDArray[np.float32] = self._encode(tf.constant(self.test_images(count)))["mean"].numpy()
        return means

    def _decoded(self, z: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        images: npt.NDArray[np.float32] = self._decode(tf.constant(z))["image"].numpy()
        return images

    def _encode(self, image: tf.Tensor) -> Mapping[str, tf.Tensor]:
        mean, log_variance = tf.split(self.encoder(image, training=False), 2, axis=-1)
        return {"mean": mean, "log_variance": log_variance}

    def _decode(self, z: tf.Tensor) -> Mapping[str, tf.Tensor]:
        return {"image": tf.sigmoid(self.decoder(z, training=False))}

    def _reconstruct(self, image: tf.Tensor) -> Mapping[str, tf.Tensor]:
        # Not "image": an ONNX graph cannot have an input and an output of the same name.
        return {"reconstruction": self._decode(self._encode(image)["mean"])["image"]}
