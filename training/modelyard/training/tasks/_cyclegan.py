"""The task ``cyclegan``: translation between two kinds of image, learned without pairs.

Source: Zhu, Park, Isola and Efros, "Unpaired Image-to-Image Translation using Cycle-Consistent Adversarial Networks",
ICCV 2017. The two domains are the garments of Fashion-MNIST and drawings of them: inverted edge maps, made by Sobel's
filter. Images ``[B, 28, 28, 1]`` from 0 to 1. Garments come from the training images of even number, drawings from
those of odd number, so that no drawing is of a garment that is seen: nothing is paired.

Two generators: one halving, residual blocks at 14 x 14, one doubling, instance normalization; the paper's, for images
of 256 x 256, halve and double twice between 7x7 convolutions. Two discriminators that judge patches
(``[B, 7, 7, 1]``). The generators' loss is

``(D_b(G(a)) - 1)^2 + (D_a(F(b)) - 1)^2 + 5 (|F(G(a)) - a| + |G(F(b)) - b|) + |G(b) - b| + |F(a) - a|``:

least squares, cycles and identity; a discriminator's is half of ``(D(real) - 1)^2 + D(made)^2``. Adam with beta_1 0.5.
The paper weighs cycles by 10 and identity by 5, which holds translations back here: after 256 steps on the subset
(width 16, one block) drawings correlate by 0.10 with the true ones, with 5 and 1 by 0.42. Unlike the paper's, the
discriminators see no buffer of earlier images, and batches are larger than 1.

Measured: these losses; and, as the test images do have pairs, the mean absolute error of each translation against the
image that was to be found. Images: three rows of garments, their drawings, and the garments again; three rows the
other way. ``--full`` trains for 30 epochs of 938 steps: below two hours on two cores.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from modelyard.artifact import DEFAULT_SIGNATURE, SignatureFunction, VerificationData
from modelyard.training.data import Mnist, memory_images
from modelyard.training.plots import image_grid
from modelyard.training.tasks.inputs import SIDE, FashionImagesTask, as_floats, takes
from modelyard.training.user import InputRequest, average_loss, minimize

#: ``(garments, drawings)``, float32 ``[B, 28, 28, 1]`` each.
_Batch = tuple[tf.Tensor, tf.Tensor]
_SHOWN = 10
_MEASURED = 100


def edge_maps(images: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Drawings of uint8 ``[N, H, W]``: 255 less a quarter of ``|gx| + |gy|``, Sobel's gradients, not below 0."""
    # int16 is enough: neither gradient exceeds 4 * 255.
    padded = np.pad(images.astype(np.int16), ((0, 0), (1, 1), (1, 1)))
    down = padded[:, 2:] - padded[:, :-2]
    right = padded[:, :, 2:] - padded[:, :, :-2]
    vertical = down[:, :, :-2] + 2 * down[:, :, 1:-1] + down[:, :, 2:]
    horizontal = right[:, :-2] + 2 * right[:, 1:-1] + right[:, 2:]
    return (255 - np.minimum((np.abs(vertical) + np.abs(horizontal)) // 4, 255)).astype(np.uint8)


class CycleganTask(FashionImagesTask):
    """Garments to drawings and back, by two generators and two discriminators.

    Args:
        data: Images, or a folder of them in MNIST's idx format; None loads Fashion-MNIST when it is first needed.
        width: Filters of the first layers; deeper ones have twice as many.
        blocks: Residual blocks of each generator.
        learning_rate: Step size of both Adams.
        cycle_weight: Of the cycles' loss.
        identity_weight: Of the loss of translating what is in the target domain already.
    """

    name = "cyclegan"
    recipe = {"batch_size": 32, "epochs": 3}
    full_recipe = {"epochs": 30}

    def __init__(
        self,
        *,
        data: Mnist | str | None = None,
        width: int = 16,
        blocks: int = 2,
        learning_rate: float = 1e-3,
        cycle_weight: float = 5.0,
        identity_weight: float = 1.0,
    ) -> None:
        super().__init__(data=data)
        self._width = width
        self._blocks = blocks
        self._learning_rate = learning_rate
        self._cycle_weight = cycle_weight
        self._identity_weight = identity_weight

    def build(self) -> None:
        """Creates the four networks, and an optimizer each for the generators and the discriminators."""
        self.to_drawing, self.to_garment = self._generator("to_drawing"), self._generator("to_garment")
        self.judges_drawings = self._discriminator("judges_drawings")
        self.judges_garments = self._discriminator("judges_garments")
        self.generator_optimizer, self.discriminator_optimizer = (
            keras.optimizers.Adam(self._learning_rate, beta_1=0.5) for _ in range(2)
        )
        self.generator_optimizer.build(_weights(self.to_drawing, self.to_garment))
        self.discriminator_optimizer.build(_weights(self.judges_drawings, self.judges_garments))

    def train_dataset(self, request: InputRequest) -> tf.data.Dataset:
        """``(garments, drawings)`` of different training images, float32 ``[B, 28, 28, 1]`` each."""
        domains = (memory_images(data, "train").batches(request) for data in self._domains)
        return tf.data.Dataset.zip(*domains).map(_without_labels)

    def eval_dataset(self, request: InputRequest) -> tf.data.Dataset:
        """``(garments, drawings)`` of the test images; these are pairs."""
        domains = (memory_images(data, "test").batches(request, training=False) for data in self._domains)
        return tf.data.Dataset.zip(*domains).map(_without_labels)

    def train_step(self, batch: _Batch) -> Mapping[str, tf.Tensor]:
        """One step of both generators, then one of both discriminators on the same translations.

        Returns:
            ``loss``, the generators' own, its parts ``adversarial``, ``cycle`` and ``identity``, before they are
            weighted, and ``discriminator_loss``, of each example, float32 ``[B]``.
        """
        with tf.GradientTape() as tape:
            values, made = self._generator_losses(batch, training=True)
            loss = average_loss(values["loss"])
        variables = _weights(self.to_drawing, self.to_garment)
        minimize(loss, variables, optimizer=self.generator_optimizer, tape=tape)
        with tf.GradientTape() as tape:
            judged = self._discriminator_losses(batch, made, training=True)
            loss = average_loss(judged)
        variables = _weights(self.judges_drawings, self.judges_garments)
        minimize(loss, variables, optimizer=self.discriminator_optimizer, tape=tape)
        return {**values, "discriminator_loss": judged}

    def eval_step(self, batch: _Batch) -> Mapping[str, tf.Tensor]:
        """The losses of :meth:`train_step` on test images, which are pairs, and the errors of the translations.

        Those are ``drawing_error`` and ``garment_error``, mean absolute errors from 0 to 1, float32 ``[B]``.
        """
        garments, drawings = batch
        values, made = self._generator_losses(batch, training=False)
        return {
            **values,
            "discriminator_loss": self._discriminator_losses(batch, made, training=False),
            "drawing_error": _mean(tf.abs(made[0] - drawings)),
            "garment_error": _mean(tf.abs(made[1] - garments)),
        }

    def signatures(self) -> Mapping[str, SignatureFunction]:
        """``to_drawing``, the default too: a garment to its drawing; ``to_garment``: the other way."""
        shape = (SIDE, SIDE, 1)
        to_drawing = takes(lambda garment: {"drawing": self.to_drawing(garment, training=False)}, garment=shape)
        to_garment = takes(lambda drawing: {"garment": self.to_garment(drawing, training=False)}, drawing=shape)
        return {"to_drawing": to_drawing, "to_garment": to_garment, DEFAULT_SIGNATURE: to_drawing}

    def verification_data(self, count: int) -> VerificationData:
        """The first test images, and drawings of them."""
        garment = {"garment": self.test_images(count)}
        drawing = {"drawing": as_floats(edge_maps(self.data.test_images[:count]))}
        return self.verification({"to_drawing": garment, "to_garment": drawing, DEFAULT_SIGNATURE: garment})

    def pictures(self) -> Mapping[str, npt.NDArray[np.uint8]]:
        """Rows: garments, their drawings, the garments from these; other drawings, their garments, the drawings."""
        garments = self.test_images(_SHOWN)
        drawings = as_floats(edge_maps(self.data.test_images[_SHOWN : 2 * _SHOWN]))
        rows = [garments, *_there_and_back(garments, self.to_drawing, self.to_garment)]
        rows += [drawings, *_there_and_back(drawings, self.to_garment, self.to_drawing)]
        return {"translation": image_grid(np.concatenate(rows), columns=_SHOWN)}

    def measurements(self) -> Mapping[str, float]:
        """Losses and errors of the first test images, as :meth:`eval_step` returns them; before the first step too."""
        batch = self.test_images(_MEASURED), as_floats(edge_maps(self.data.test_images[:_MEASURED]))
        return {name: float(tf.reduce_mean(values)) for name, values in self.eval_step(batch).items()}

    def data_description(self) -> str:
        """Where the images came from, and how drawings were made of them."""
        return f"{self.data.source}; garments of even number, drawings by Sobel's filter of those of odd number"

    @cached_property
    def _domains(self) -> tuple[Mnist, Mnist]:
        data = self.data
        count = len(data.train_images) // 2
        garments = replace(
            data, train_images=data.train_images[0::2][:count], train_labels=data.train_labels[0::2][:count]
        )
        drawings = replace(
            data,
            train_images=edge_maps(data.train_images[1::2][:count]),
            train_labels=data.train_labels[1::2][:count],
            test_images=edge_maps(data.test_images),
        )
        return garments, drawings

    def _generator_losses(
        self, batch: _Batch, *, training: bool
    ) -> tuple[dict[str, tf.Tensor], tuple[tf.Tensor, tf.Tensor]]:
        """Losses of each example, and the translations ``(drawings, garments)``."""
        garments, drawings = batch
        # Both uses of a generator in one call, which is the same: it normalizes each image alone.
        drawn, drawn_again = tf.split(self.to_drawing(tf.concat([garments, drawings], 0), training=training), 2)
        dressed, dressed_again = tf.split(self.to_garment(tf.concat([drawings, garments], 0), training=training), 2)
        adversarial = _mean(tf.square(self.judges_drawings(drawn, training=training) - 1.0))
        adversarial += _mean(tf.square(self.judges_garments(dressed, training=training) - 1.0))
        cycle = _mean(tf.abs(self.to_garment(drawn, training=training) - garments))
        cycle += _mean(tf.abs(self.to_drawing(dressed, training=training) - drawings))
        identity = _mean(tf.abs(dressed_again - garments)) + _mean(tf.abs(drawn_again - drawings))
        loss = adversarial + self._cycle_weight * cycle + self._identity_weight * identity
        return {"loss": loss, "adversarial": adversarial, "cycle": cycle, "identity": identity}, (drawn, dressed)

    def _discriminator_losses(self, batch: _Batch, made: tuple[tf.Tensor, tf.Tensor], *, training: bool) -> tf.Tensor:
        """Sum over both discriminators, of each example; no gradient goes into what was made."""
        garments, drawings = batch
        total = tf.zeros([tf.shape(garments)[0]])
        for judge, real, fake in (
            (self.judges_drawings, drawings, made[0]),
            (self.judges_garments, garments, made[1]),
        ):
            of_real, of_fake = tf.split(judge(tf.concat([real, tf.stop_gradient(fake)], 0), training=training), 2)
            total += (_mean(tf.square(of_real - 1.0)) + _mean(tf.square(of_fake))) / 2.0
        return total

    def _generator(self, name: str) -> keras.Model:
        layers, width = keras.layers, 2 * self._width
        image = keras.Input((SIDE, SIDE, 1))
        x = _normalized(layers.Conv2D(width, 4, strides=2, padding="same", use_bias=False)(image))
        for _ in range(self._blocks):
            inner = _normalized(layers.Conv2D(width, 3, padding="same", use_bias=False)(x))
            inner = layers.Conv2D(width, 3, padding="same", use_bias=False)(inner)
            x = layers.Add()([x, layers.GroupNormalization(groups=-1)(inner)])
        x = layers.Conv2DTranspose(1, 4, strides=2, padding="same")(x)
        # float32 under any precision: losses compare it with images.
        return keras.Model(image, layers.Activation("sigmoid", dtype="float32")(x), name=name)

    def _discriminator(self, name: str) -> keras.Model:
        layers, width = keras.layers, self._width
        image = keras.Input((SIDE, SIDE, 1))
        x = layers.LeakyReLU(0.2)(layers.Conv2D(width, 4, strides=2, padding="same")(image))
        x = layers.Conv2D(2 * width, 4, strides=2, padding="same", use_bias=False)(x)
        x = layers.LeakyReLU(0.2)(layers.GroupNormalization(groups=-1)(x))
        return keras.Model(image, layers.Conv2D(1, 4, padding="same", dtype="float32")(x), name=name)


def _weights(*models: keras.Model) -> list[Any]:
    return [value for model in models for value in model.trainable_variables]


def _normalized(x: Any) -> Any:
    """Each channel of each image to mean 0 and variance 1, then ReLU."""
    return keras.layers.ReLU()(keras.layers.GroupNormalization(groups=-1)(x))


def _mean(values: tf.Tensor) -> tf.Tensor:
    """Mean over each example: ``[B, H, W, C]`` to ``[B]``."""
    return tf.reduce_mean(values, axis=[1, 2, 3])


def _there_and_back(images: npt.NDArray[np.float32], there: Any, back: Any) -> list[npt.NDArray[np.float32]]:
    translated = there(images, training=False)
    return [np.asarray(translated), np.asarray(back(translated, training=False))]


def _without_labels(first: Any, second: Any) -> tuple[tf.Tensor, tf.Tensor]:
    return first[0], second[0]
