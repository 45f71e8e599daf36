"""Networks that make things, their noise an input."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from benchmarks.zoo._kind import floats, integers, kind, module, named, spec, weights

layers = keras.layers


@kind(floats(6))
def gan_generator() -> Any:
    """Generator of a GAN: transposed convolutions."""
    noise = keras.Input((6,), name="noise")
    h = layers.Reshape((4, 4, 4))(layers.Dense(64)(noise))
    h = layers.LeakyReLU()(layers.BatchNormalization()(layers.Conv2DTranspose(4, 4, 2, "same")(h)))
    return keras.Model(noise, layers.Conv2DTranspose(3, 4, 2, "same", activation="tanh")(h))


@kind(floats(8))
def autoencoder() -> Any:
    """Autoencoder: code, reconstruction and error of each row."""
    x = keras.Input((8,), name="x")
    code = layers.Dense(3, name="code")(x)
    again = layers.Dense(8, name="again")(code)
    return keras.Model(x, {"code": code, "again": again, "error": keras.ops.mean(keras.ops.square(x - again), -1)})


@kind(named(image=floats(8, 8, 1), step=integers(100)))
def diffusion_step() -> Any:
    """One step of a diffusion model, time as a wave."""
    image, step = keras.Input((8, 8, 1), name="image"), keras.Input((), dtype="int32", name="step")
    angle = keras.ops.expand_dims(keras.ops.cast(step, "float32"), 1) * np.array([1.0, 0.1, 0.01, 0.001], np.float32)
    wave = layers.Dense(4)(keras.ops.concatenate([keras.ops.sin(angle), keras.ops.cos(angle)], -1))
    h = layers.Conv2D(4, 3, padding="same")(image) + layers.Reshape((1, 1, 4))(wave)
    return keras.Model(
        [image, step], layers.Conv2D(1, 3, padding="same")(keras.ops.silu(layers.GroupNormalization(2)(h)))
    )


@kind(floats(4))
def normalizing_flow() -> Any:
    """Affine coupling flow with its log determinant."""
    w = weights(2, 4)

    def serve(x: Any) -> Any:
        a, b = tf.split(x, 2, -1)
        scale, shift = tf.split(tf.tanh(a @ w), 2, -1)
        return {"z": tf.concat([a, b * tf.exp(scale) + shift], -1), "log_det": tf.reduce_sum(scale, -1)}

    return module(serve, spec(None, 4), w=w)


@kind(floats(6))
def vector_quantizer() -> Any:
    """Codebook: nearest code and its vector (VQ-VAE)."""
    codes = weights(8, 6)

    def serve(x: Any) -> Any:
        far = tf.reduce_sum(x**2, 1, keepdims=True) - 2.0 * x @ tf.transpose(codes) + tf.reduce_sum(codes**2, 1)
        code = tf.argmin(far, 1)
        return {"code": code, "vector": tf.gather(codes, code)}

    return module(serve, spec(None, 6), codes=codes)
