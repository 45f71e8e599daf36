"""Networks that train each other: what ``gan`` and ``dcgan`` have in common, and a history of what was made."""

from __future__ import annotations

import abc
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from modelyard.artifact import DEFAULT_SIGNATURE, SignatureFunction, VerificationData
from modelyard.training.data import Mnist
from modelyard.training.plots import image_grid, save_image
from modelyard.training.run import TrainResult
from modelyard.training.tasks._frechet import FrechetDistance
from modelyard.training.tasks.inputs import FashionImagesTask, as_floats, sums, takes, ways
from modelyard.training.user import average_loss, minimize

_SHOWN = 64
_STEPS = 10
#: Vectors whose mean stands for a class, and of how many they are the nearest.
_CHOSEN, _CHOSEN_FROM = 3, 1000
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

    def draw(self, result: TrainResult, folder: Path) -> list[Path]:
        """Writes :meth:`pictures`, ways between latent vectors, and sums of those of classes."""
        # On an arc, as z is N(0, I) on all of it; a straight line comes nearer to 0 than samples do.
        angles = np.linspace(0, np.pi / 2, _STEPS)
        ends = np.random.default_rng(_EVAL_SEED).normal(size=(2, _STEPS // 2, self._latent))
        between = ways(ends[0], ends[1], np.stack([np.cos(angles), np.sin(angles)], axis=1))
        drawn = {"interpolation": image_grid(self._made(between), columns=_STEPS), **self.arithmetic()}
        written = [(folder / f"{name}.png", pixels) for name, pixels in drawn.items()]
        for path, pixels in written:
            save_image(pixels, path, scale=2)
        return [*super().draw(result, folder), *(path for path, _ in written)]

    def arithmetic(self) -> Mapping[str, npt.NDArray[np.uint8]]:
        """``arithmetic``: rows of classes a, b, c, and a - b + c.

        A class's vector is the mean of three whose images are nearest to the class's mean test image, by the squares of
        pixels' differences: the paper chose three by eye.
        """
        z = np.random.default_rng(_EVAL_SEED).normal(size=(_CHOSEN_FROM, self._latent)).astype(np.float32)
        made, real, labels = self._made(z), as_floats(self.data.test_images), self.data.test_labels
        vectors = {}
        for label, name in enumerate(self.data.class_names):
            distances = np.square(made - real[labels == label].mean(axis=0)).mean(axis=(1, 2, 3))
            vectors[name] = z[np.argsort(distances)[:_CHOSEN]].mean(axis=0)
        return {"arithmetic": image_grid(self._made(sums(vectors)), columns=4)}

    def measurements(self) -> Mapping[str, float]:
        """``frechet``: how far made images are from real ones."""
        return {"frechet": self.frechet(self.samples(self.frechet.count))}

    @cached_property
    def frechet(self) -> FrechetDistance:
        """The measure, trained when it is first needed."""
        return FrechetDistance(self.data)

    def samples(self, count: int) -> npt.NDArray[np.float32]:
        """Images from latent vectors that are the same each time, float32 ``[N, H, W, C]`` from 0 to 1."""
        return self._made(np.random.default_rng(_EVAL_SEED).normal(size=(count, self._latent)).astype(np.float32))

    def real_images(self, count: int) -> npt.NDArray[np.float32]:
        """The first test images."""
        return self.test_images(count)

    def _made(self, z: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        parts = [np.asarray(self.generator(z[start : start + 250], training=False)) for start in range(0, len(z), 250)]
        return np.concatenate(parts)


class ImageHistory(tf.Module):
    """Images that a generator made in earlier steps, for its discriminator, which else forgets what it has learned.

    Source: Shrivastava et al., "Learning from Simulated and Unsupervised Images through Adversarial Training", CVPR
    2017, as Zhu et al. have it: of what is made, half is shown at once; the other half changes places with images that
    are kept. The images are variables: a checkpoint has them. Of several replicas each keeps its own, and a checkpoint
    the first one's.
    """

    def __init__(self, shape: tuple[int, ...], size: int, random: tf.random.Generator) -> None:
        super().__init__()
        self._size = size
        self._random = random
        self.images, self.filled = (
            tf.Variable(
                tf.zeros(kept, dtype),
                trainable=False,
                synchronization=tf.VariableSynchronization.ON_READ,
                aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
            )
            for kept, dtype in (([size, *shape], tf.float32), ([size], tf.bool))
        )

    def exchange(self, made: tf.Tensor) -> tf.Tensor:
        """Keeps some of the images, float32 ``[B, H, W, C]``, and puts others that were kept in their places."""
        if not self._size:
            return made
        count = tf.minimum(tf.shape(made)[0], self._size)
        places = tf.argsort(self._random.uniform([self._size]))[:count]
        images, filled = tf.convert_to_tensor(self.images), tf.convert_to_tensor(self.filled)
        # Into a place that is empty still an image goes without another coming out.
        given = tf.gather(filled, places) & (self._random.uniform([count]) < 0.5)
        kept = given | ~tf.gather(filled, places)
        new, old = made[:count], tf.gather(images, places)
        self.images.assign(tf.tensor_scatter_nd_update(images, places[:, None], _where(kept, new, old)))
        self.filled.assign(tf.tensor_scatter_nd_update(filled, places[:, None], tf.ones_like(kept)))
        return tf.concat([_where(given, old, new), made[count:]], axis=0)


def _where(chosen: tf.Tensor, first: tf.Tensor, second: tf.Tensor) -> tf.Tensor:
    """For each image the first or the second."""
    return tf.where(chosen[:, None, None, None], first, second)


def _cross_entropy(labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
    return tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=logits)


def _values(discriminator: tf.Tensor, generator: tf.Tensor, logits: tf.Tensor) -> Mapping[str, tf.Tensor]:
    return {
        "loss": discriminator + generator,
        "discriminator_loss": discriminator,
        "generator_loss": generator,
        "fooled": tf.cast(logits > 0, tf.float32),
    }
