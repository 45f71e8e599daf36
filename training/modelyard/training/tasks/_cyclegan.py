"""The task ``cyclegan``: translation between two kinds of image, learned without pairs.

Source: Zhu, Park, Isola and Efros, "Unpaired Image-to-Image Translation using Cycle-Consistent Adversarial Networks",
ICCV 2017. Two generators, G from a to b and F from b to a; two discriminators that judge patches. The generators' loss:

``(D_b(G(a)) - 1)^2 + (D_a(F(b)) - 1)^2 + c (|F(G(a)) - a| + |G(F(b)) - b|) + i (|G(b) - b| + |F(a) - a|)``:

least squares, cycles and identity; a discriminator's is half of ``(D(real) - 1)^2 + D(made)^2``, where what was made
comes from this step or, for about half of it, from a history of 50 images of earlier steps (Shrivastava et al.,
"Learning from Simulated and Unsupervised Images through Adversarial Training", CVPR 2017). Adam with beta_1 0.5.

Without ``folder``, a are the garments of Fashion-MNIST and b drawings of them: inverted edge maps, made by Sobel's
filter. Images ``[B, 28, 28, 1]`` from 0 to 1. Garments come from the training images of even number, drawings from
those of odd number, so that no drawing is of a garment that is seen: nothing is paired. The networks are small: one
halving, residual blocks at 14 x 14, one doubling, instance normalization, judged patches ``[B, 7, 7, 1]``. c is 5 and
i is 1: the paper's 10 and 5 hold translations back here. After 256 steps on the subset (width 16, one block, no
history) drawings correlated by 0.10 with the true ones, with 5 and 1 by 0.42.

With ``folder=``, a and b are its two folders of colour images, ``folder/<a>/*.jpeg`` and ``folder/<b>/*.jpeg``, or both
below ``train`` and ``test``; ``[B, 256, 256, 3]``, flipped and cropped at random. The networks are the paper's: 7 x 7,
two halvings, 9 residual blocks (6 below 256 x 256), two doublings, 7 x 7, instance normalization, reflected borders,
weights from N(0, 0.02); discriminators whose outputs see 70 x 70 pixels. c is 20 and i is 10, which are the paper's
weights: its images go from -1 to 1. Its batches are of one image, ``modelyard train cyclegan --set folder=FOLDER
--batch-size 1``; its rate falls after half of 200 epochs, here it stays.

Measured: these losses; and, as the test garments and drawings do have pairs, the mean absolute error of each
translation against the image that was to be found. Images: three rows of a, their translations, and a again; three rows
the other way. ``--full`` trains Fashion-MNIST for 30 epochs of 938 steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from modelyard.artifact import DEFAULT_SIGNATURE, SignatureFunction, VerificationData
from modelyard.errors import ConfigurationError
from modelyard.training.data import (
    Augmentation,
    ImageFiles,
    ImageOptions,
    ImageSplits,
    Mnist,
    image_examples,
    image_folder_dataset,
    memory_images,
    scan_images,
)
from modelyard.training.plots import image_grid
from modelyard.training.tasks._adversarial import ImageHistory
from modelyard.training.tasks.inputs import SIDE, FashionImagesTask, as_floats, edge_maps, takes
from modelyard.training.user import InputRequest, average_loss, minimize

#: ``(a, b)``, float32 ``[B, H, W, C]`` each.
_Batch = tuple[tf.Tensor, tf.Tensor]
_SHOWN = 10
_SHOWN_LARGE = 4
_MEASURED = 100
#: Width, blocks (0: by size), learning rate, weights of cycles and identity.
_SMALL, _FULL = (16, 2, 1e-3, 5.0, 1.0), (64, 0, 2e-4, 20.0, 10.0)
#: Of the paper's 286 x 286, 256 x 256 are seen.
_CROP = 256 / 286


class CycleganTask(FashionImagesTask):
    """Two generators and two discriminators: garments to drawings and back, or between two folders of colour images.

    Args:
        data: Images, or a folder of them in MNIST's idx format; None loads Fashion-MNIST when it is first needed.
        folder: Folder with two folders of image files, a and b in alphabetical order; empty for Fashion-MNIST.
        side: Height and width of images of a folder, in pixels; a multiple of 4.
        width: Filters of the first layers; deeper ones have more. None, as below, for what is said above.
        blocks: Residual blocks of each generator.
        learning_rate: Step size of both Adams.
        cycle_weight: Of the cycles' loss.
        identity_weight: Of the loss of translating what is in the target domain already.
        history: Images of earlier steps that each discriminator is shown again; 0 for none.

    Raises:
        ConfigurationError: ``side`` is no multiple of 4, ``history`` is below 0, or ``folder`` has not two folders.
    """

    name = "cyclegan"
    recipe = {"batch_size": 32, "epochs": 3}
    full_recipe = {"epochs": 30}
    # What the inherited ones hold are garments alone.
    train = test = None  # type: ignore[assignment]

    def __init__(
        self,
        *,
        data: Mnist | str | None = None,
        folder: str = "",
        side: int = 256,
        width: int | None = None,
        blocks: int | None = None,
        learning_rate: float | None = None,
        cycle_weight: float | None = None,
        identity_weight: float | None = None,
        history: int = 50,
    ) -> None:
        super().__init__(data=data)
        if side < 4 or side % 4:
            raise ConfigurationError(f"side is {side}; expected a multiple of 4, which can be halved twice.")
        if history < 0:
            raise ConfigurationError(f"history is {history}; expected a number of images, or 0 for none.")
        given = (width, blocks, learning_rate, cycle_weight, identity_weight)
        chosen: Any = zip(given, _FULL if folder else _SMALL, strict=True)
        self._width, self._blocks, self._learning_rate, self._cycle_weight, self._identity_weight = (
            default if value is None else value for value, default in chosen
        )
        self._folder = folder
        self._shape = (side, side, 3) if folder else (SIDE, SIDE, 1)
        self._blocks = self._blocks or (9 if side >= 256 else 6)
        self._history = history
        self._a, self._b = ("a", "b") if folder else ("garment", "drawing")

    def build(self) -> None:
        """Creates the four networks, two optimizers, and the histories of what the generators made."""
        make = self._full_generator if self._folder else self._small_generator
        self.to_b, self.to_a = make(f"to_{self._b}"), make(f"to_{self._a}")
        self.judges_b = self._discriminator(f"judges_{self._b}")
        self.judges_a = self._discriminator(f"judges_{self._a}")
        self.generator_optimizer, self.discriminator_optimizer = (
            keras.optimizers.Adam(self._learning_rate, beta_1=0.5) for _ in range(2)
        )
        self.generator_optimizer.build(_weights(self.to_b, self.to_a))
        self.discriminator_optimizer.build(_weights(self.judges_b, self.judges_a))
        (self.random,) = tf.random.get_global_generator().split(1)
        self.histories = [ImageHistory(self._shape, self._history, self.random) for _ in range(2)]

    @property
    def exported(self) -> Mapping[str, Any]:
        """The networks, without the histories."""
        return {name: model for name, model in super().exported.items() if isinstance(model, keras.Model)}

    def train_dataset(self, request: InputRequest) -> tf.data.Dataset:
        """``(a, b)`` of different training images, float32 ``[B, H, W, C]`` each."""
        return self._batches(request, "train")

    def eval_dataset(self, request: InputRequest) -> tf.data.Dataset:
        """``(a, b)`` of the test images; of garments and drawings these are pairs."""
        return self._batches(request, "test")

    def train_step(self, batch: _Batch) -> Mapping[str, tf.Tensor]:
        """One step of both generators, then one of both discriminators, on these translations and earlier ones.

        Returns:
            ``loss``, the generators' own, its parts ``adversarial``, ``cycle`` and ``identity``, before they are
            weighted, and ``discriminator_loss``, of each example, float32 ``[B]``.
        """
        with tf.GradientTape() as tape:
            values, made = self._generator_losses(batch, training=True)
            loss = average_loss(values["loss"])
        minimize(loss, _weights(self.to_b, self.to_a), optimizer=self.generator_optimizer, tape=tape)
        to_b, to_a = (history.exchange(images) for history, images in zip(self.histories, made, strict=True))
        with tf.GradientTape() as tape:
            judged = self._discriminator_losses(batch, (to_b, to_a), training=True)
            loss = average_loss(judged)
        minimize(loss, _weights(self.judges_b, self.judges_a), optimizer=self.discriminator_optimizer, tape=tape)
        return {**values, "discriminator_loss": judged}

    def eval_step(self, batch: _Batch) -> Mapping[str, tf.Tensor]:
        """The losses of :meth:`train_step` on test images, without history; and errors, where these are pairs.

        Those are ``drawing_error`` and ``garment_error``, mean absolute errors from 0 to 1, float32 ``[B]``.
        """
        values, made = self._generator_losses(batch, training=False)
        values["discriminator_loss"] = self._discriminator_losses(batch, made, training=False)
        if not self._folder:
            values["drawing_error"] = _mean(tf.abs(made[0] - batch[1]))
            values["garment_error"] = _mean(tf.abs(made[1] - batch[0]))
        return values

    def signatures(self) -> Mapping[str, SignatureFunction]:
        """``to_drawing``, the default too: a garment to its drawing; ``to_garment``: the other way.

        Of a folder ``to_b`` and ``to_a``, from ``a`` to ``b`` and from ``b`` to ``a``.
        """
        a, b = self._a, self._b
        to_b = takes(lambda **inputs: {b: self.to_b(inputs[a], training=False)}, **{a: self._shape})
        to_a = takes(lambda **inputs: {a: self.to_a(inputs[b], training=False)}, **{b: self._shape})
        return {f"to_{b}": to_b, f"to_{a}": to_a, DEFAULT_SIGNATURE: to_b}

    def verification_data(self, count: int) -> VerificationData:
        """The first test images of both kinds; of a folder also training images, where those are too few."""
        first, second = self._examples(count)
        a, b = {self._a: first}, {self._b: second}
        return VerificationData(
            inputs={f"to_{self._b}": a, f"to_{self._a}": b, DEFAULT_SIGNATURE: a},
            description=f"{len(first)} images and {len(second)} of the other kind; {self.data_description()}",
        )

    def pictures(self) -> Mapping[str, npt.NDArray[np.uint8]]:
        """Rows: of a, translated, and back again; others of b, translated, and back again."""
        shown = _SHOWN_LARGE if self._folder else _SHOWN
        first, second = self._examples(2 * shown)
        shown = min(shown, len(first), len(second))
        # Later ones of b: no drawing is of a garment that is shown.
        a, b = first[:shown], second[-shown:]
        rows = [a, *_round_trip(a, self.to_b, self.to_a), b, *_round_trip(b, self.to_a, self.to_b)]
        return {"translation": image_grid(np.concatenate(rows), columns=shown)}

    def measurements(self) -> Mapping[str, float]:
        """Losses and errors of the first test images, as :meth:`eval_step` returns them; of garments and drawings."""
        if self._folder:
            return {}
        first, second = self._examples(_MEASURED)
        values = self.eval_step((tf.constant(first), tf.constant(second)))
        return {name: float(tf.reduce_mean(each)) for name, each in values.items()}

    def data_description(self) -> str:
        """Where the images came from, and how drawings were made of them."""
        if self._folder:
            return " and ".join(f"{len(files.train.paths):,} images of {files.class_names[0]}" for files in self._files)
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

    @cached_property
    def _files(self) -> tuple[ImageSplits, ImageSplits]:
        """The image files of a and of b."""
        both = scan_images(Path(self._folder))
        if len(both.class_names) != 2:
            raise ConfigurationError(
                f"The folder {self._folder} has the folders {', '.join(both.class_names)}; expected two, of the images "
                "to translate from and to."
            )

        def only(files: ImageFiles, label: int) -> ImageFiles:
            chosen = files.labels == label
            paths = tuple(path for path, mine in zip(files.paths, chosen, strict=True) if mine)
            return ImageFiles(paths=paths, labels=np.zeros(len(paths), np.int64))

        a, b = (
            replace(both, class_names=(name,), train=only(both.train, label), test=only(both.test, label))
            for label, name in enumerate(both.class_names)
        )
        return a, b

    def _image(self, crop: float = 1.0) -> ImageOptions:
        height, width, _ = self._shape
        return ImageOptions(height=height, width=width, channels=3, crop=crop)

    def _batches(self, request: InputRequest, split: Literal["train", "test"]) -> tf.data.Dataset:
        training = split == "train"
        if not self._folder:
            garments, drawings = (
                memory_images(data, split).batches(request, training=training) for data in self._domains
            )
            return tf.data.Dataset.zip(garments, drawings).map(_without_labels)
        augmentation = Augmentation(brightness=0, contrast=0) if training else None
        # Orders of their own: the same ones would make pairs of folders of the same size.
        seeds = (request.seed, request.seed + 1) if training else (None, None)
        a, b = (
            image_folder_dataset(
                split,
                folder=files,
                image=self._image(_CROP if training else 1.0),
                augmentation=augmentation,
                **{**vars(request), "seed": seed},
            )
            for files, seed in zip(self._files, seeds, strict=True)
        )
        return tf.data.Dataset.zip(a, b).map(_without_labels)

    def _examples(self, count: int) -> list[npt.NDArray[np.float32]]:
        """The first test images of a and of b."""
        if not self._folder:
            return [self.test_images(count), as_floats(edge_maps(self.data.test_images[:count]))]
        found = (image_examples(files, image=self._image(), count=count) for files in self._files)
        return [each.inputs[DEFAULT_SIGNATURE]["image"] for each in found]

    def _generator_losses(
        self, batch: _Batch, *, training: bool
    ) -> tuple[dict[str, tf.Tensor], tuple[tf.Tensor, tf.Tensor]]:
        """Losses of each example, and the translations ``(to b, to a)``."""
        a, b = batch
        # Both uses of a generator in one call, which is the same: it normalizes each image alone.
        made_b, again_b = tf.split(self.to_b(tf.concat([a, b], 0), training=training), 2)
        made_a, again_a = tf.split(self.to_a(tf.concat([b, a], 0), training=training), 2)
        adversarial = _mean(tf.square(self.judges_b(made_b, training=training) - 1.0))
        adversarial += _mean(tf.square(self.judges_a(made_a, training=training) - 1.0))
        cycle = _mean(tf.abs(self.to_a(made_b, training=training) - a))
        cycle += _mean(tf.abs(self.to_b(made_a, training=training) - b))
        identity = _mean(tf.abs(again_a - a)) + _mean(tf.abs(again_b - b))
        loss = adversarial + self._cycle_weight * cycle + self._identity_weight * identity
        return {"loss": loss, "adversarial": adversarial, "cycle": cycle, "identity": identity}, (made_b, made_a)

    def _discriminator_losses(self, batch: _Batch, made: tuple[tf.Tensor, tf.Tensor], *, training: bool) -> tf.Tensor:
        """Sum over both discriminators, of each example; no gradient goes into what was made."""
        a, b = batch
        total = tf.zeros([tf.shape(a)[0]])
        for judge, real, fake in ((self.judges_b, b, made[0]), (self.judges_a, a, made[1])):
            of_real, of_fake = tf.split(judge(tf.concat([real, tf.stop_gradient(fake)], 0), training=training), 2)
            total += (_mean(tf.square(of_real - 1.0)) + _mean(tf.square(of_fake))) / 2.0
        return total

    def _small_generator(self, name: str) -> keras.Model:
        layers, width = keras.layers, 2 * self._width
        image = keras.Input(self._shape)
        x = _normalized(layers.Conv2D(width, 4, strides=2, padding="same", use_bias=False)(image))
        for _ in range(self._blocks):
            inner = _normalized(layers.Conv2D(width, 3, padding="same", use_bias=False)(x))
            inner = layers.Conv2D(width, 3, padding="same", use_bias=False)(inner)
            x = layers.Add()([x, layers.GroupNormalization(groups=-1)(inner)])
        x = layers.Conv2DTranspose(1, 4, strides=2, padding="same")(x)
        # float32 under any precision: losses compare it with images.
        return keras.Model(image, layers.Activation("sigmoid", dtype="float32")(x), name=name)

    def _full_generator(self, name: str) -> keras.Model:
        layers, width = keras.layers, self._width
        image = keras.Input(self._shape)
        x = _normalized(_reflecting(layers.Rescaling(2.0, -1.0)(image), width, 7))
        for filters in (2 * width, 4 * width):
            x = layers.Conv2D(filters, 3, strides=2, padding="same", use_bias=False, kernel_initializer=_initial())(x)
            x = _normalized(x)
        for _ in range(self._blocks):
            inner = _reflecting(_normalized(_reflecting(x, 4 * width, 3)), 4 * width, 3)
            x = layers.Add()([x, layers.GroupNormalization(groups=-1)(inner)])
        for filters in (2 * width, width):
            x = layers.Conv2DTranspose(
                filters, 3, strides=2, padding="same", use_bias=False, kernel_initializer=_initial()
            )(x)
            x = _normalized(x)
        x = layers.Activation("tanh", dtype="float32")(_reflecting(x, 3, 7))
        return keras.Model(image, layers.Rescaling(0.5, 0.5, dtype="float32")(x), name=name)

    def _discriminator(self, name: str) -> keras.Model:
        layers, width = keras.layers, self._width
        kernels: Any = (lambda: {"kernel_initializer": _initial()}) if self._folder else dict
        image = keras.Input(self._shape)
        full = [(2 * width, 2), (4 * width, 2), (8 * width, 1)]
        x = layers.LeakyReLU(0.2)(layers.Conv2D(width, 4, strides=2, padding="same", **kernels())(image))
        for filters, strides in full if self._folder else full[:1]:
            x = layers.Conv2D(filters, 4, strides=strides, padding="same", use_bias=False, **kernels())(x)
            x = layers.LeakyReLU(0.2)(layers.GroupNormalization(groups=-1)(x))
        return keras.Model(image, layers.Conv2D(1, 4, padding="same", dtype="float32", **kernels())(x), name=name)


def _weights(*models: keras.Model) -> list[tf.Variable]:
    return [value for model in models for value in model.trainable_variables]


def _initial() -> keras.Initializer:
    # A new one for each layer: one of them makes the same numbers each time.
    return keras.initializers.RandomNormal(stddev=0.02)


def _reflecting(x: tf.Tensor, filters: int, kernel: int) -> tf.Tensor:
    """A convolution of an image whose borders are continued by its mirror image."""
    around = kernel // 2
    x = keras.ops.pad(x, [[0, 0], [around, around], [around, around], [0, 0]], mode="reflect")
    return keras.layers.Conv2D(filters, kernel, use_bias=False, kernel_initializer=_initial())(x)


def _normalized(x: tf.Tensor) -> tf.Tensor:
    """Each channel of each image to mean 0 and variance 1, then ReLU."""
    return keras.layers.ReLU()(keras.layers.GroupNormalization(groups=-1)(x))


def _mean(values: tf.Tensor) -> tf.Tensor:
    """Mean over each example: ``[B, H, W, C]`` to ``[B]``."""
    return tf.reduce_mean(values, axis=[1, 2, 3])


def _round_trip(images: npt.NDArray[np.float32], to: keras.Model, back: keras.Model) -> list[npt.NDArray[np.float32]]:
    translated = to(images, training=False)
    return [np.asarray(translated), np.asarray(back(translated, training=False))]


def _without_labels(first: tf.Tensor, second: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    a, b = first[0], second[0]
    if a.shape[0] is None:
        # The last batches of folders of different sizes.
        count = tf.minimum(tf.shape(a)[0], tf.shape(b)[0])
        a, b = a[:count], b[:count]
    return a, b
