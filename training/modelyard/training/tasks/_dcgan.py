"""The task ``dcgan``: a generative adversarial network of convolutions.

Source: Radford, Metz and Chintala, "Unsupervised Representation Learning with Deep Convolutional Generative Adversarial
Networks", 2015, in three variants:

- ``keras``: after the DCGAN that ends Keras' guide "Writing a training loop from scratch" (Chollet, 2019). Latent 128,
  LeakyReLU 0.2, transposed convolutions, uniform noise of 0.05 on the labels, Adam 3e-4 for the discriminator and 4e-4
  for the generator.
- ``tutorial``: the discriminator of TensorFlow's tutorial "Deep Convolutional Generative Adversarial Network", with
  convolutions of 5 x 5 and dropout 0.3, its latent 100 and its Adam 1e-4 for both. The generator is that of ``keras``
  with batch normalization, not the tutorial's.
- ``cookbook``: that of Linder-Norén's Keras-GAN (2017), as Gulli, Kapoor and Pal print it in "Deep Learning with
  TensorFlow 2 and Keras" (Packt, 2019). Generator: dense to 7 x 7 x 128, twice upsampling and a convolution of 3 x 3,
  to 128 and 64 filters, batch normalization and ReLU, then tanh. Discriminator: 32, 64, 128 and 256 filters of 3 x 3,
  the first three in strides of 2, batch normalization behind all but the first, LeakyReLU 0.2, dropout 0.25. Latent
  100 (the book: 10), Adam 2e-4 for both. Its images go from -1 to 1 inside, and for 28 x 28 only.

Of ``keras``, two things are not the guide's. Its discriminator ends in a global maximum over features that see 7 x 7
pixels each, so it judges strokes and no shapes: the Fréchet distance stayed where it began (132 before training, 120
after 600 steps; a quarter of the width, seed 0). Here the features keep their places. And beta_1 of both Adams is 0.5,
as the paper has it: with the guide's 0.9 the distance was still 117 after 750 steps, with 0.5 it was 15 after 600.

Images ``[B, 28, 28, 1]`` of Fashion-MNIST, or, with ``folder=``, ``[B, 64, 64, 3]`` from a folder of image files (any
classes, any sizes). Latent vectors ``[B, 128]`` or ``[B, 100]`` from N(0, I).

The networks for 64 x 64, of both variants that have them, are deeper, as in the paper: one more doubling, to half the
filters, and 64, 128, 256 and 256 filters of 4 x 4 that judge. Figures of a thousand coloured garments, an eighth of the
width, 256 steps of 32:

- The generator has batch normalization in both variants. Without it, its first images hardly depend on the latent
  vector, so the whole batch is pushed towards the black of most pixels, where the sigmoid is flat: with seed 2 all
  images were black from step 96 to 192, and the distance went from 125 by 244 to 96.
- Three layers of 3 x 3 see 15 pixels and were at chance (loss 0.69): the distance fell to 21 and 24 (seeds 2 and 0).
  Four of 4 x 4 see 46: to 11 and 16.
- The last convolution is 5 x 5 over half the filters, not the guide's 7 x 7 over all: 46 s of processor time, not 74.

Losses: the discriminator's is the mean of the cross-entropies of its logits ``[B]`` for real images and for made ones;
the generator's is the cross-entropy of "real" for what it made, the form that does not saturate.

Measured: both losses, the share of made images that pass for real, and for 28 x 28 the Fréchet distance to test images.
Images: 64 samples, every 500 steps; at the end ways between latent vectors, and of Fashion-MNIST sums of classes.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Literal

import keras
import numpy as np
import numpy.typing as npt

from modelyard.errors import ConfigurationError
from modelyard.training.data import DataSource, ImageFolder, ImageOptions, Mnist, memory_images
from modelyard.training.tasks._adversarial import AdversarialTask
from modelyard.training.tasks.inputs import SIDE

_LARGE = 64
_SLOPE = 0.2
#: By variant: latent numbers, step sizes of discriminator and generator, noise on the labels.
_SETTINGS = {
    "keras": (128, (3e-4, 4e-4), 0.05),
    "tutorial": (100, (1e-4, 1e-4), 0.0),
    "cookbook": (100, (2e-4, 2e-4), 0.0),
}


class DcganTask(AdversarialTask):
    """Convolutional generator and discriminator.

    Args:
        data: Images, or a folder of them in MNIST's idx format; None loads Fashion-MNIST when it is first needed.
        variant: ``keras``, ``tutorial`` or ``cookbook``.
        folder: Folder of image files to learn instead, in colour and 64 x 64; empty for Fashion-MNIST.
        width: Filters of the widest layers, as a share of the source's.
        beta_1: Both Adams' decay of the mean of gradients.

    Raises:
        ConfigurationError: An unknown variant, ``cookbook`` for a folder, a width that leaves no filter, or a decay
            that is none.
    """

    name = "dcgan"
    recipe = {"batch_size": 64, "epochs": 1}
    full_recipe = {"epochs": 50}

    def __init__(
        self,
        *,
        data: Mnist | str | None = None,
        variant: Literal["keras", "tutorial", "cookbook"] = "keras",
        folder: str = "",
        width: float = 1.0,
        beta_1: float = 0.5,
    ) -> None:
        if variant not in _SETTINGS:
            raise ConfigurationError(f"variant is {variant!r}; expected {', '.join(_SETTINGS)}.")
        if variant == "cookbook" and folder:
            raise ConfigurationError(
                f"Received the variant cookbook for the folder {folder}; its networks are for the 28 x 28 of "
                "Fashion-MNIST. Expected variant keras or tutorial, or no folder."
            )
        if not width * 64 >= 1:
            raise ConfigurationError(f"width is {width}; expected a share of the source's filters, such as 1 or 0.25.")
        if not 0 <= beta_1 < 1:
            raise ConfigurationError(f"beta_1 is {beta_1}; expected a number from 0 to below 1.")
        latent, rates, self.label_noise = _SETTINGS[variant]
        super().__init__(data=data, latent=latent, rates=rates, beta_1=beta_1)
        self._variant = variant
        self._folder = folder
        self._width = width

    @cached_property
    def train(self) -> DataSource:
        """``(images, labels)`` of the training images."""
        return self._files("train") if self._folder else memory_images(self.data, "train")

    @cached_property
    def test(self) -> DataSource:
        """``(images, labels)`` of the test images."""
        return self._files("test") if self._folder else memory_images(self.data, "test")

    def _files(self, split: Literal["train", "test"]) -> ImageFolder:
        return ImageFolder(self._folder, split=split, image=ImageOptions(height=_LARGE, width=_LARGE, channels=3))

    def make_generator(self) -> keras.Model:
        """From a latent vector by two doublings of 7 x 7, or three of 8 x 8 for a folder."""
        if self._variant == "cookbook":
            return self._cookbook_generator()
        layers = keras.layers
        start, doublings = (8, (128, 128, 64)) if self._folder else (SIDE // 4, (128, 128))
        kernel, channels = (5, 3) if self._folder else (7, 1)
        first = self._filters(128)
        stack = [keras.Input((self._latent,)), layers.Dense(start * start * first, use_bias=self._biased)]
        stack += [*self._activation(), layers.Reshape((start, start, first))]
        for filters in doublings:
            stack.append(
                layers.Conv2DTranspose(self._filters(filters), 4, strides=2, padding="same", use_bias=self._biased)
            )
            stack += self._activation()
        stack.append(layers.Conv2D(channels, kernel, padding="same", activation="sigmoid"))
        return keras.Sequential(stack, name="generator")

    def make_discriminator(self) -> keras.Model:
        """Convolutions of stride 2 to a logit."""
        if self._variant == "cookbook":
            return self._cookbook_discriminator()
        layers = keras.layers
        side, channels = (_LARGE, 3) if self._folder else (SIDE, 1)
        kernel = 5 if self._variant == "tutorial" else 4 if self._folder else 3
        stack: list[keras.layers.Layer] = [keras.Input((side, side, channels))]
        for filters in (64, 128, 256, 256) if self._folder else (64, 128):
            stack += [
                layers.Conv2D(self._filters(filters), kernel, strides=2, padding="same"),
                layers.LeakyReLU(negative_slope=_SLOPE),
            ]
            if self._variant == "tutorial":
                stack.append(layers.Dropout(0.3))
        # Not a global maximum: see above.
        stack += [layers.Flatten(), layers.Dense(1)]
        return keras.Sequential(stack, name="discriminator")

    def _cookbook_generator(self) -> keras.Model:
        layers, first = keras.layers, self._filters(128)
        stack = [keras.Input((self._latent,)), layers.Dense((SIDE // 4) ** 2 * first, activation="relu")]
        stack.append(layers.Reshape((SIDE // 4, SIDE // 4, first)))
        for filters in (128, 64):
            stack += [layers.UpSampling2D(), layers.Conv2D(self._filters(filters), 3, padding="same")]
            stack += [layers.BatchNormalization(momentum=0.8), layers.ReLU()]
        stack += [layers.Conv2D(1, 3, padding="same", activation="tanh"), layers.Rescaling(0.5, 0.5)]
        return keras.Sequential(stack, name="generator")

    def _cookbook_discriminator(self) -> keras.Model:
        layers = keras.layers
        stack: list[keras.layers.Layer] = [keras.Input((SIDE, SIDE, 1)), layers.Rescaling(2.0, -1.0)]
        for filters in (32, 64, 128, 256):
            stack.append(layers.Conv2D(self._filters(filters), 3, strides=1 if filters == 256 else 2, padding="same"))
            if filters == 64:
                # From 7 x 7 to 8 x 8.
                stack.append(layers.ZeroPadding2D(((0, 1), (0, 1))))
            if filters > 32:
                stack.append(layers.BatchNormalization(momentum=0.8))
            stack += [layers.LeakyReLU(negative_slope=_SLOPE), layers.Dropout(0.25)]
        stack += [layers.Flatten(), layers.Dense(1)]
        return keras.Sequential(stack, name="discriminator")

    def real_images(self, count: int) -> npt.NDArray[np.float32]:
        """Test images; of a folder also training images, where those are too few."""
        if not self._folder:
            return super().real_images(count)
        images = self.test.examples(count).inputs
        left = count - len(images)
        return np.concatenate([images, self.train.examples(left).inputs]) if left else images

    def arithmetic(self) -> Mapping[str, npt.NDArray[np.uint8]]:
        """``arithmetic`` for Fashion-MNIST, whose classes it names; nothing for a folder."""
        return {} if self._folder else super().arithmetic()

    def measurements(self) -> Mapping[str, float]:
        """``frechet`` for Fashion-MNIST; nothing for a folder, whose images no network here knows."""
        return {} if self._folder else super().measurements()

    def data_description(self) -> str:
        """Where the images came from."""
        return f"images of {self._folder}" if self._folder else super().data_description()

    @property
    def _biased(self) -> bool:
        # The layers before a batch normalization need none of their own; why a folder has it, see above.
        return self._variant == "keras" and not self._folder

    def _filters(self, count: int) -> int:
        return max(1, round(count * self._width))

    def _activation(self) -> list[keras.layers.Layer]:
        activation = keras.layers.LeakyReLU(negative_slope=_SLOPE)
        return [activation] if self._biased else [keras.layers.BatchNormalization(), activation]
