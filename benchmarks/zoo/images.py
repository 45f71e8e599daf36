"""Networks over images and volumes, and their preprocessing."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from benchmarks.zoo._kind import floats, integers, kind, module, spec, weights

layers = keras.layers


def _sizes(channels: int) -> Any:
    """Images whose height and width differ from call to call, multiples of 4."""

    def sample(rng: Any, n: int) -> Any:
        height, width = 4 * rng.integers(2, 6, 2)
        return rng.normal(size=(n, height, width, channels)).astype(np.float32)

    return sample


def _photos(rng: Any, n: int) -> Any:
    """JPEGs of several sizes."""
    photos = []
    for _ in range(n):
        height, width = rng.integers(9, 20, 2)
        colours = rng.integers(0, 255, (height, width, 3)).astype(np.uint8)
        photos.append(tf.io.encode_jpeg(colours).numpy())
    return np.array(photos, object)


@kind(floats(16, 16, 3))
def convolutional() -> Any:
    """Convolutions, batch norm, pooling: a classifier."""
    x = keras.Input((16, 16, 3), name="image")
    h = layers.ReLU(6.0)(layers.BatchNormalization()(layers.Conv2D(4, 3, strides=2, padding="same")(x)))
    h = layers.AveragePooling2D(3, 2, "same")(layers.SeparableConv2D(6, 3)(layers.DepthwiseConv2D(3)(h)))
    return keras.Model(x, layers.Dense(5, activation="softmax")(layers.GlobalAveragePooling2D()(h)))


@kind(floats(8, 8, 4))
def group_normalization() -> Any:
    """GroupNormalization and squeeze-and-excitation."""
    x = keras.Input((8, 8, 4), name="image")
    h = layers.GroupNormalization(2)(x)
    return keras.Model(x, h * layers.Dense(4, activation="sigmoid")(layers.GlobalAveragePooling2D(keepdims=True)(h)))


@kind(floats(6, 8, 8, 2))
def volumes() -> Any:
    """Conv3D and MaxPooling3D."""
    x = keras.Input((6, 8, 8, 2), name="volume")
    return keras.Model(x, layers.MaxPooling3D()(layers.Conv3D(4, 3)(x)))


@kind(floats(8, 8, 3))
def transposed_convolution() -> Any:
    """Conv2DTranspose with strides."""
    x = keras.Input((8, 8, 3), name="image")
    return keras.Model(x, layers.Conv2DTranspose(2, 4, strides=2, padding="same")(layers.Conv2DTranspose(4, 3)(x)))


@kind(floats(16, 16, 3))
def unet() -> Any:
    """U-Net of fixed size."""
    return _unet(16)


@kind(_sizes(3))
def unet_free_size() -> Any:
    """U-Net of free height and width."""
    return _unet(None)


def _unet(size: int | None) -> Any:
    x = keras.Input((size, size, 3), name="image")
    top = layers.Conv2D(4, 3, padding="same", activation="relu")(x)
    low = layers.Conv2D(8, 3, padding="same", activation="relu")(layers.MaxPooling2D()(top))
    up = layers.Conv2DTranspose(4, 2, strides=2)(low)
    return keras.Model(x, layers.Conv2D(2, 1, activation="softmax")(layers.Concatenate()([top, up])))


@kind(floats(8, 8, 3))
def upsampling() -> Any:
    """Bilinear UpSampling2D and Resizing."""
    x = keras.Input((8, 8, 3), name="image")
    return keras.Model(x, layers.Resizing(13, 11)(layers.UpSampling2D(interpolation="bilinear")(x)))


@kind(floats(8, 8, 3))
def upsampled_twice() -> Any:
    """Autoencoder of images that ends with nearest UpSampling2D and convolutions."""
    return _upsampled(8)


@kind(_sizes(3))
def upsampled_free_size() -> Any:
    """The same of free height and width."""
    return _upsampled(None)


def _upsampled(size: int | None) -> Any:
    x = h = keras.Input((size, size, 3), name="image")
    for filters in (4, 8):
        h = layers.Conv2D(filters, 3, 2, padding="same", activation="relu")(h)
    for filters in (4, 3):
        h = layers.Conv2D(filters, 3, padding="same")(layers.UpSampling2D()(h))
    return keras.Model(x, h)


@kind(floats(8, 8, 3))
def resize_bicubic() -> Any:
    """Bicubic resize."""
    return module(lambda image: tf.image.resize(image, [11, 13], "bicubic"), spec(None, 8, 8, 3))


@kind(floats(16, 16, 3))
def resize_antialias() -> Any:
    """Resize with antialiasing."""
    return module(lambda image: tf.image.resize(image, [5, 7], antialias=True), spec(None, 16, 16, 3))


@kind(integers(256, 20, 20, 3, dtype=np.uint8))
def preprocessing_inside() -> Any:
    """uint8 image, resized, cropped and scaled inside."""
    x = keras.Input((20, 20, 3), dtype="uint8", name="image")
    h = layers.Rescaling(1 / 127.5, -1.0)(layers.CenterCrop(10, 10)(layers.Resizing(12, 12)(x)))
    return keras.Model(x, layers.Dense(3)(layers.Flatten()(layers.Conv2D(4, 3, 2)(h))))


@kind(_photos, tolerance=1e-3)
def jpeg_inside() -> Any:
    """JPEG bytes, decoded and resized inside."""
    w = weights(192, 3)

    def decode(photo: Any) -> Any:
        return tf.image.resize(tf.io.decode_jpeg(photo, 3), [8, 8]) / 255.0

    def serve(photos: Any) -> Any:
        pixels = tf.map_fn(decode, photos, fn_output_signature=tf.TensorSpec([8, 8, 3]))
        return tf.reshape(pixels, [-1, 192]) @ w

    return module(serve, spec(None, dtype=tf.string), w=w)


@kind(floats(8, 8, 3))
def augmentation_layers() -> Any:
    """Augmentation layers inside, off when serving."""
    x = keras.Input((8, 8, 3), name="image")
    h = layers.RandomContrast(0.2)(layers.RandomFlip()(layers.RandomRotation(0.1)(x)))
    return keras.Model(x, layers.Conv2D(2, 3)(h))


@kind(floats(8, 8, 3))
def pads_and_crops() -> Any:
    """Padding, cropping, reflection, pixel shuffle."""
    w = weights(3, 3, 3, 8)

    def serve(image: Any) -> Any:
        h = tf.pad(image, [[0, 0], [2, 2], [2, 2], [0, 0]], "REFLECT")[:, 1:-1, 1:-1]
        return tf.nn.depth_to_space(tf.nn.conv2d(h, w, 1, "VALID"), 2)

    return module(serve, spec(None, 8, 8, 3), w=w)


@kind(floats(12, 12, 4))
def dilated_pyramid() -> Any:
    """Dilated and grouped convolutions side by side (ASPP)."""
    x = keras.Input((12, 12, 4), name="image")
    parts = [layers.Conv2D(4, 3, dilation_rate=rate, padding="same", groups=2)(x) for rate in (1, 2, 3)]
    return keras.Model(x, layers.UnitNormalization()(layers.Concatenate()(parts)))


@kind(floats(6, 8))
def capsules() -> Any:
    """Capsules with three rounds of routing."""
    w = weights(6, 4, 8, 5)

    def squash(v: Any) -> Any:
        norm = tf.reduce_sum(v * v, -1, keepdims=True)
        return v * tf.sqrt(norm + 1e-9) / (1.0 + norm)

    def serve(x: Any) -> Any:
        votes = tf.einsum("nid,ijde->nije", x, w)
        logits = tf.zeros_like(votes[..., 0])
        poses = votes[:, 0]
        for _ in tf.range(3):
            poses = squash(tf.reduce_sum(tf.nn.softmax(logits, 2)[..., None] * votes, 1))
            logits += tf.einsum("nije,nje->nij", votes, poses)
        return {"poses": poses, "lengths": tf.norm(poses, axis=-1)}

    return module(serve, spec(None, 6, 8), w=w)


@kind(floats(9, 9, 2))
def spatial_transformer() -> Any:
    """Bilinear sampling at learned places (grid sample)."""
    w = weights(2, 2)
    rows, columns = np.meshgrid(np.arange(9.0), np.arange(9.0), indexing="ij")
    grid = tf.constant(np.stack([rows, columns], -1).astype(np.float32))

    def serve(image: Any) -> Any:
        places = tf.clip_by_value(grid + tf.tanh(tf.einsum("nhwc,cd->nhwd", image, w)), 0.0, 7.999)
        corner = tf.floor(places)
        part = places - corner
        index = tf.cast(corner, tf.int32)

        def at(down: int, right: int) -> Any:
            return tf.gather_nd(image, index + [down, right], batch_dims=1)

        top = at(0, 0) * (1 - part[..., 1:]) + at(0, 1) * part[..., 1:]
        bottom = at(1, 0) * (1 - part[..., 1:]) + at(1, 1) * part[..., 1:]
        return top * (1 - part[..., :1]) + bottom * part[..., :1]

    return module(serve, spec(None, 9, 9, 2), w=w)


def _colours(size: int) -> Any:
    return lambda rng, n: rng.uniform(0, 255, (n, size, size, 3)).astype(np.float32)


def _application(name: str, size: int, sample: Any) -> Any:
    """Random weights, and statistics of batch norms that the examples have, as after training."""
    model = getattr(keras.applications, name)(
        weights=None, input_shape=(size, size, 3), classes=7, classifier_activation=None
    )
    rng = np.random.default_rng(0)
    norms = [layer for layer in model.layers if isinstance(layer, layers.BatchNormalization)]
    for layer in model.layers:
        if isinstance(layer, layers.Dropout):
            layer.rate = 0.0
    for layer in norms:
        # Without these a ReLU may be zero for every image. Momentum 0: the statistics are those of these images.
        layer.beta.assign(rng.normal(0.0, 0.3, layer.beta.shape))
        layer.momentum = 0.0
    model(sample(rng, 32), training=True)
    return model


@kind(floats(32, 32, 3), options={"max_abs_error": 1e-4}, tolerance=1e-3)
def mobilenet_v2() -> Any:
    """MobileNetV2 of keras.applications."""
    return _application("MobileNetV2", 32, floats(32, 32, 3))


@kind(
    _colours(32),
    options={"max_abs_error": 1e-4},
    tolerance=1e-3,
)
def mobilenet_v3_small() -> Any:
    """MobileNetV3Small of keras.applications."""
    return _application("MobileNetV3Small", 32, _colours(32))


@kind(
    _colours(64),
    options={"max_abs_error": 1e-4},
    tolerance=1e-3,
)
def efficientnet_v2_b0() -> Any:
    """EfficientNetV2B0 of keras.applications."""
    return _application("EfficientNetV2B0", 64, _colours(64))
