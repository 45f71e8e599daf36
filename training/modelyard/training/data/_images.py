"""From encoded images to the network's input: one path for training, evaluation and serving."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Real
from typing import Literal

import tensorflow as tf

from modelyard.errors import ConfigurationError
from modelyard.training.data._plan import PREFETCH, BatchPlan
from modelyard.training.run import whole_number

_AUGMENTATION = 1
_DRAWS = 5


@dataclass(frozen=True, kw_only=True)
class ImageOptions:
    """What the network sees of an image.

    An image of any size is resized to ``height / crop`` by ``width / crop``. Training with an :class:`Augmentation`
    takes a random part of the network's size out of that, evaluation and serving the middle.

    Attributes:
        height: Of the network's input, in pixels.
        width: Of the network's input, in pixels.
        channels: 1 (grey) or 3 (RGB).
        crop: Share of each side that the network sees, above 0, at most 1.

    Raises:
        ConfigurationError: A number is out of its range.
    """

    height: int
    width: int
    channels: Literal[1, 3] = 3
    crop: float = 1.0

    def __post_init__(self) -> None:
        for name in ("height", "width"):
            object.__setattr__(self, name, whole_number(name, getattr(self, name), 1))
        if self.channels not in (1, 3):
            raise ConfigurationError(f"channels is {self.channels}; expected 1 (grey) or 3 (RGB).")
        if not _is_number(self.crop) or not 0 < self.crop <= 1:
            raise ConfigurationError(f"crop is {self.crop!r}; expected a share above 0, at most 1.")

    @property
    def enlarged(self) -> tuple[int, int]:
        """Height and width before the crop."""
        return round(self.height / self.crop), round(self.width / self.crop)

    def preprocess(self, image: tf.Tensor) -> tf.Tensor:
        """The inference path: uint8 ``[H, W, channels]`` of any size to float32 ``[height, width, channels]``, 0 to 1.

        Give this method to ``EncodedImageFunction(preprocess=...)``: evaluation and serving are then the same.
        """
        return scale(self.middle(self.enlarge(image)))

    def enlarge(self, image: tf.Tensor) -> tf.Tensor:
        """Resizes one image, uint8 ``[H, W, channels]``, to the size before the crop, float32 from 0 to 255."""
        # No antialias: it has no equal in ONNX.
        resized = tf.image.resize(image, self.enlarged, method="bilinear", antialias=False)
        return tf.ensure_shape(resized, [*self.enlarged, self.channels])

    def middle(self, images: tf.Tensor) -> tf.Tensor:
        """The middle of enlarged images: ``[..., *enlarged, channels]`` to ``[..., height, width, channels]``."""
        top, left = ((before - after) // 2 for before, after in zip(self.enlarged, self._size, strict=True))
        return images[..., top : top + self.height, left : left + self.width, :]

    @property
    def _size(self) -> tuple[int, int]:
        return self.height, self.width


@dataclass(frozen=True, kw_only=True)
class Augmentation:
    """Random changes to training images, drawn anew for each image of each epoch.

    The random crop comes from :attr:`ImageOptions.crop`. Every draw is a function of seed, epoch and position, so a
    resumed run draws the same.

    Attributes:
        flip: Whether half of the images are mirrored, left to right.
        brightness: Largest change, as a share of the full scale; 0 for none.
        contrast: Largest change of the factor from 1; 0 for none.

    Raises:
        ConfigurationError: A number is not from 0 to 1.
    """

    flip: bool = True
    brightness: float = 0.1
    contrast: float = 0.1

    def __post_init__(self) -> None:
        for name in ("brightness", "contrast"):
            value = getattr(self, name)
            if not _is_number(value) or not 0 <= value <= 1:
                raise ConfigurationError(f"{name} is {value!r}; expected a number from 0 to 1.")


def _is_number(value: object) -> bool:
    return isinstance(value, Real)


def decode_image(data: tf.Tensor, *, channels: int) -> tf.Tensor:
    """Decodes a JPEG, PNG, BMP, WebP or GIF (first frame) to uint8 ``[H, W, channels]``, as modelyard's servers do.

    In grey (``channels`` 1) JPEG and PNG alone. TensorFlow refuses a WebP that is transparent or moves; servers do not.
    """
    # TensorFlow's default for JPEG is up to 12 levels off everybody else's decoder; servers use the accurate one.
    pixels = tf.cond(
        tf.io.is_jpeg(data),
        lambda: tf.io.decode_jpeg(data, channels=channels, dct_method="INTEGER_ACCURATE"),
        lambda: tf.io.decode_image(data, channels=channels, expand_animations=False),
    )
    return tf.ensure_shape(pixels, [None, None, channels])


def scale(images: tf.Tensor) -> tf.Tensor:
    """From 0..255 to 0..1, float32."""
    # Not a division: some graphs are rewritten to multiply by the reciprocal and some are not, and then differ.
    return tf.cast(images, tf.float32) * tf.constant(1.0 / 255.0, tf.float32)


def finish(
    batches: tf.data.Dataset, plan: BatchPlan, image: ImageOptions, augmentation: Augmentation | None
) -> tf.data.Dataset:
    """Crops, changes and scales batches of enlarged images from 0 to 255; the first is batch ``plan.start``.

    The result is prefetched, of known length: float32 ``[B, height, width, C]`` from 0 to 1, and int64 ``[B]``.
    """
    size = plan.batch_size if plan.drop_remainder else None

    def done(step: tf.Tensor, images: tf.Tensor, labels: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        if augmentation is None:
            images = scale(image.middle(images))
        else:
            images = _augment(images, _draws(plan, step, tf.shape(images)[0]), image, augmentation)
        return tf.ensure_shape(images, [size, image.height, image.width, image.channels]), tf.ensure_shape(
            labels, [size]
        )

    numbered = tf.data.Dataset.zip(tf.data.Dataset.range(plan.start, plan.steps), batches)
    return (
        numbered.map(lambda step, batch: done(step, *batch), num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
        .apply(tf.data.experimental.assert_cardinality(plan.steps - plan.start))
        .prefetch(PREFETCH)
    )


def _draws(plan: BatchPlan, step: tf.Tensor, size: tf.Tensor) -> tf.Tensor:
    """Uniform numbers for the examples of one batch, ``[size, 5]``."""
    # Drawn for the global batch: an example's numbers must not depend on how many workers there are.
    seed = tf.stack([tf.constant(plan.seeds(_AUGMENTATION), tf.int64), step])
    total = tf.minimum(tf.constant(plan.global_batch, tf.int64), plan.count - step * plan.global_batch)
    begin, _ = plan.share(total)
    numbers = tf.random.stateless_uniform([plan.global_batch, _DRAWS], seed=seed)
    return numbers[begin : begin + tf.cast(size, tf.int64)]


def _augment(images: tf.Tensor, draws: tf.Tensor, image: ImageOptions, augmentation: Augmentation) -> tf.Tensor:
    if image.crop < 1:
        images = _random_crop(images, draws[:, 0], draws[:, 1], image)
    images = scale(images)
    if augmentation.flip:
        images = tf.where(draws[:, 2, tf.newaxis, tf.newaxis, tf.newaxis] < 0.5, tf.reverse(images, [2]), images)
    if augmentation.contrast:
        factor = 1.0 + augmentation.contrast * (2.0 * draws[:, 3, tf.newaxis, tf.newaxis, tf.newaxis] - 1.0)
        mean = tf.reduce_mean(images, axis=[1, 2], keepdims=True)
        images = (images - mean) * factor + mean
    if augmentation.brightness:
        images += augmentation.brightness * (2.0 * draws[:, 4, tf.newaxis, tf.newaxis, tf.newaxis] - 1.0)
    return tf.clip_by_value(images, 0.0, 1.0)


def _random_crop(images: tf.Tensor, vertical: tf.Tensor, horizontal: tf.Tensor, image: ImageOptions) -> tf.Tensor:
    room = [before - after + 1 for before, after in zip(image.enlarged, (image.height, image.width), strict=True)]
    # A uniform float32 below 1 may round up to the room itself.
    tops = tf.minimum(tf.cast(vertical * room[0], tf.int32), room[0] - 1)
    lefts = tf.minimum(tf.cast(horizontal * room[1], tf.int32), room[1] - 1)
    rows = tops[:, tf.newaxis] + tf.range(image.height)
    columns = lefts[:, tf.newaxis] + tf.range(image.width)
    return tf.gather(tf.gather(images, rows, axis=1, batch_dims=1), columns, axis=2, batch_dims=1)
