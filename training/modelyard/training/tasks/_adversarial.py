"""Two networks that train each other: what ``gan`` and ``dcgan`` have in common."""

from __future__ import annotations

import abc
from collections.abc import Mapping
from functools import cached_property

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from modelyard.artifact import DEFAULT_SIGNATURE, SignatureFunction, VerificationData
from modelyard.training.data import Mnist
from modelyard.training.plots import image_grid
from modelyard.training.tasks._frechet import FrechetDistance
from modelyard.training.tasks.inputs import FashionImagesTask, takes
from modelyard.training.user import average_loss, minimize

_SHOWN = 64
_EVAL_SEED = 1


class AdversarialTask(FashionImagesTask):
    """A generator of images and a discriminator that tells them from real ones.

    Each step trains first the discriminator, then the generator, with an optimizer each, on the losses of Goodfellow et
    al., "Generative Adversarial Networks", 2014; the generator's is the one that does not saturate.
    """

    #: How much uniform noise is added to the discriminator's labels.
    label_noise = 0.0

    def __init__(
        self, *, data: Mnist | str | None = None, latent: int, rates: tuple[float, float], beta_1: float
    ) -> None:
        super().__init__(data=data)
        self._latent = latent
        #: Step sizes of the Adams of the discriminator and of the generator.
        self._rates = rates
        self._beta_1 = beta_1

    @abc.abstractmethod
    def make_generator(self) -> keras.Model:
        """A network from ``[B, latent]`` to images from 0 to 1."""

    @abc.abstractmethod
    def make_discriminator(self) -> keras.Model:
        """A network from images to a logit ``[B, 1]``, high for real ones."""

    def build(self) -> None:
        """Creates both networks, an optimizer each, and the source of random numbers."""
        self.generator, self.discriminator = self.make_generator(), self.make_discriminator()
        self.discriminator_optimizer, self.generator_optimizer = (
            keras.optimizers.Adam(rate, beta_1=self._beta_1) for rate in self._rates
        )
        self.discriminator_optimizer.build(self.discriminator.trainable_variables)
        self.generator_optimizer.build(self.generator.trainable_variables)
        (self.random,) = tf.random.get_global_generator().split(1)

    def train_step(self, batch: tuple[tf.Tensor, ...]) -> Mapping[str, tf.Tensor]:
        """One step of the discriminator, then one of the generator.

        Returns:
            ``discriminator_loss`` and ``generator_loss`` of each example, float32 ``[B]``, ``loss``, which is their
            sum, and ``fooled``, the share of made images that the discriminator took for real.
        """
        images, _ = batch
        count = tf.shape(images)[0]
        random, generator, discriminator = self.random, self.generator, self.discriminator
        made = generator(random.normal([count, self._latent]), training=True)
        noise = self.label_noise * random.uniform([2, count])
        with tf.GradientTape() as tape:
            real_logits = discriminator(images, training=True)[:, 0]
            made_logits = discriminator(made, training=True)[:, 0]
            judged = _cross_entropy(1.0 - noise[0], real_logits) + _cross_entropy(noise[1], made_logits)
            loss = average_loss(judged / 2)
        minimize(loss, discriminator.trainable_variables, optimizer=self.discriminator_optimizer, tape=tape)
        z = random.normal([count, self._latent])
        with tf.GradientTape() as tape:
            logits = discriminator(generator(z, training=True), training=True)[:, 0]
            fooling = _cross_entropy(tf.ones_like(logits), logits)
            loss = average_loss(fooling)
        minimize(loss, generator.trainable_variables, optimizer=self.generator_optimizer, tape=tape)
        return _values(judged / 2, fooling, logits)

    def eval_step(self, batch: tuple[tf.Tensor, ...]) -> Mapping[str, tf.Tensor]:
        """Losses on test images and images from fixed latent vectors, as :meth:`train_step` returns them."""
        images, _ = batch
        z = tf.random.stateless_normal([tf.shape(images)[0], self._latent], seed=[_EVAL_SEED, 0])
        real_logits = self.discriminator(images, training=False)[:, 0]
        logits = self.discriminator(self.generator(z, training=False), training=False)[:, 0]
        judged = _cross_entropy(tf.ones_like(logits), real_logits) + _cross_entropy(tf.zeros_like(logits), logits)
        return _values(judged / 2, _cross_entropy(tf.ones_like(logits), logits), logits)

    def signatures(self) -> Mapping[str, SignatureFunction]:
        """``generate``, the default too: a latent vector to an image; ``discriminate``: an image to a probability."""
        generate = takes(lambda z: {"image": self.generator(z, training=False)}, z=(self._latent,))
        discriminate = takes(
            lambda image: {"real": tf.sigmoid(self.discriminator(image, training=False)[:, 0])},
            image=tuple(self.generator.output_shape[1:]),
        )
        return {"discriminate": discriminate, "generate": generate, DEFAULT_SIGNATURE: generate}

    def verification_data(self, count: int) -> VerificationData:
        """Latent vectors from N(0, I), and the first test images."""
        images = self.real_images(count)
        z = {"z": np.random.default_rng(0).normal(size=(len(images), self._latent)).astype(np.float32)}
        return self.verification({"discriminate": {"image": images}, "generate": z, DEFAULT_SIGNATURE: z})

    def pictures(self) -> Mapping[str, npt.NDArray[np.uint8]]:
        """Images from 64 latent vectors, the same each time."""
        return {"samples": image_grid(self.samples(_SHOWN))}

    def measurements(self) -> Mapping[str, float]:
        """``frechet``: how far made images are from real ones."""
        return {"frechet": self.frechet(self.samples(self.frechet.count))}

    @cached_property
    def frechet(self) -> FrechetDistance:
        """The measure, trained when it is first needed."""
        return FrechetDistance(self.data)

    def samples(self, count: int) -> npt.NDArray[np.float32]:
        """Images from latent vectors that are the same each time, float32 ``[N, H, W, C]`` from 0 to 1."""
        z = np.random.default_rng(_EVAL_SEED).normal(size=(count, self._latent)).astype(np.float32)
        parts = [np.asarray(self.generator(z[start : start + 250], training=False)) for start in range(0, count, 250)]
        return np.concatenate(parts)

    def real_images(self, count: int) -> npt.NDArray[np.float32]:
        """The first test images."""
        return self.test_images(count)


def _cross_entropy(labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
    return tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=logits)


def _values(discriminator: tf.Tensor, generator: tf.Tensor, logits: tf.Tensor) -> Mapping[str, tf.Tensor]:
    return {
        "loss": discriminator + generator,
        "discriminator_loss": discriminator,
        "generator_loss": generator,
        "fooled": tf.cast(logits > 0, tf.float32),
    }
