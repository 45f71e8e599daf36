"""The task ``vae``: a variational autoencoder.

Source: Kingma and Welling, "Auto-Encoding Variational Bayes", 2013, with the network of the cookbook: 784-500-500-z and
back, softplus, a Bernoulli decoder (logits ``[B, 784]``), Adam at 1e-3, batches of 100, z in 2, 5, 10 or 20. Loss: the
negative ELBO in nats, ``-E_q[log p(x | z)] + KL(q(z | x) || N(0, I))``, with one sample of z by the reparametrisation
``z = mean + exp(log_variance / 2) eps``.

Measured: ELBO by epoch, and its two parts. Images: reconstructions, a 20 x 20 grid over two latent dimensions, the
latent means of the test images. ``--full`` trains for 75 epochs: 11 minutes of processor time.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from pathlib import Path

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from modelyard.artifact import DEFAULT_SIGNATURE, SignatureFunction, VerificationData
from modelyard.errors import ConfigurationError
from modelyard.training.data import Mnist
from modelyard.training.plots import image_grid, save_curves, save_scatter
from modelyard.training.run import TrainResult
from modelyard.training.tasks.inputs import PIXELS, SIDE, FashionImagesTask, takes
from modelyard.training.user import average_loss, minimize

_HIDDEN = 500
_GRID = 20
_SHOWN = 10
_SCATTERED = 2000


class VaeTask(FashionImagesTask):
    """A variational autoencoder of Fashion-MNIST.

    Args:
        data: Images, or a folder of them in MNIST's idx format; None loads Fashion-MNIST when it is first needed.
        latent: Dimensions of z.
        learning_rate: Step size of Adam.

    Raises:
        ConfigurationError: ``latent`` is below 2.
    """

    name = "vae"
    recipe = {"batch_size": 100, "epochs": 10}
    full_recipe = {"epochs": 75}

    def __init__(self, *, data: Mnist | str | None = None, latent: int = 2, learning_rate: float = 1e-3) -> None:
        super().__init__(data=data)
        if latent < 2:
            raise ConfigurationError(f"latent is {latent}; expected at least 2 dimensions.")
        self._latent = latent
        self._learning_rate = learning_rate

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
            values = self._elbo(images, noise, training=True)
            loss = average_loss(values["loss"])
        variables = [*self.encoder.trainable_variables, *self.decoder.trainable_variables]
        minimize(loss, variables, optimizer=self.optimizer, tape=tape)
        return values

    def eval_step(self, batch: tuple[tf.Tensor, ...]) -> Mapping[str, tf.Tensor]:
        """The same with z at the mean of q, so that it is the same each time."""
        images, _ = batch
        return self._elbo(images, tf.zeros([tf.shape(images)[0], self._latent]), training=False)

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
        """Ten test images over their reconstructions, and the grid over the first two latent dimensions."""
        images = self.test_images(_SHOWN)
        again = self._reconstruct(tf.constant(images))["reconstruction"].numpy()
        normal = statistics.NormalDist()
        # Equal steps of probability, as N(0, I) has most of its mass in the middle.
        axis = [normal.inv_cdf((index + 0.5) / _GRID) for index in range(_GRID)]
        z = np.zeros((_GRID * _GRID, self._latent), np.float32)
        z[:, 0], z[:, 1] = np.tile(axis, _GRID), np.repeat(axis, _GRID)
        latent = self._decode(tf.constant(z))["image"].numpy()
        return {
            "reconstructions": image_grid(np.concatenate([images, again]), columns=_SHOWN),
            "latent_grid": image_grid(latent, columns=_GRID, gap=0),
        }

    def draw(self, result: TrainResult, folder: Path) -> list[Path]:
        """Writes the images, the latent means of the test images, and the ELBO by epoch."""
        written = super().draw(result, folder)
        images = self.test_images(_SCATTERED)
        means = self._encode(tf.constant(images))["mean"].numpy()
        scatter, curves = folder / "latent_scatter.png", folder / "elbo.png"
        names = self.data.class_names
        save_scatter(
            means[:, :2], self.data.test_labels[: len(images)], scatter, title="Means of q(z | x), test", names=names
        )
        series = {
            "training": [-epoch.train["loss"] for epoch in result.history],
            "test, z at the mean": [-epoch.evaluation["loss"] for epoch in result.history],
        }
        save_curves({"ELBO, nats": series}, curves, title="Evidence lower bound")
        return [*written, scatter, curves]

    def _elbo(self, images: tf.Tensor, noise: tf.Tensor, *, training: bool) -> Mapping[str, tf.Tensor]:
        mean, log_variance = tf.split(self.encoder(images, training=training), 2, axis=-1)
        z = mean + tf.exp(log_variance / 2) * noise
        logits = self.decoder(z, training=training)
        errors = tf.nn.sigmoid_cross_entropy_with_logits(labels=images, logits=logits)
        reconstruction = tf.reduce_sum(errors, axis=[1, 2, 3])
        divergence = tf.reduce_sum(tf.square(mean) + tf.exp(log_variance) - 1 - log_variance, axis=-1) / 2
        return {
            "loss": reconstruction + divergence,
            "reconstruction": reconstruction,
            "divergence": divergence,
        }

    def _encode(self, image: tf.Tensor) -> Mapping[str, tf.Tensor]:
        mean, log_variance = tf.split(self.encoder(image, training=False), 2, axis=-1)
        return {"mean": mean, "log_variance": log_variance}

    def _decode(self, z: tf.Tensor) -> Mapping[str, tf.Tensor]:
        return {"image": tf.sigmoid(self.decoder(z, training=False))}

    def _reconstruct(self, image: tf.Tensor) -> Mapping[str, tf.Tensor]:
        # Not "image": an ONNX graph cannot have an input and an output of the same name.
        return {"reconstruction": self._decode(self._encode(image)["mean"])["image"]}
