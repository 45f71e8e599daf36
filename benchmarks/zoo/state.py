"""State and randomness: models whose answers depend on more than their inputs."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from benchmarks.zoo._kind import floats, kind, module, spec, weights

layers = keras.layers


@kind(floats(2))
def counter() -> Any:
    """A counter that every call moves on."""
    count, w = tf.Variable(0.0), weights(2)
    return module(lambda x: x * count.assign_add(1.0) + w, spec(None, 2), count=count, w=w)


@kind(floats(2))
def running_mean() -> Any:
    """A running mean that is updated and subtracted."""
    mean = tf.Variable(tf.zeros([2]))

    def serve(x: Any) -> Any:
        mean.assign(0.9 * mean + 0.1 * tf.reduce_mean(x, 0))
        return x - mean

    return module(serve, spec(None, 2), mean=mean)


@kind(lambda rng, n: rng.normal(size=(4, 9, 6)).astype(np.float32), batch=False)
def stateful_gru() -> Any:
    """Stateful GRU with a batch of four."""
    x = keras.Input(batch_shape=(4, 9, 6), name="x")
    return keras.Model(x, layers.GRU(5, stateful=True)(x))


@kind(lambda rng, n: rng.normal(size=(2, 3, 6, 6, 2)).astype(np.float32), batch=False)
def stateful_convlstm() -> Any:
    """Stateful ConvLSTM2D with a batch of two."""
    x = keras.Input(batch_shape=(2, 3, 6, 6, 2), name="film")
    return keras.Model(x, layers.ConvLSTM2D(3, 3, stateful=True)(x))


@kind(floats(3), stochastic=("z",))
def variational_encoder() -> Any:
    """Variational autoencoder with a sampled code."""
    w = weights(3, 2)
    return module(lambda x: {"mean": x @ w, "z": x @ w + 0.5 * tf.random.normal(tf.shape(x @ w))}, spec(None, 3), w=w)


class Sampling(keras.layers.Layer):
    """Draws a code."""

    def __init__(self) -> None:
        super().__init__()
        self.seed_generator = keras.random.SeedGenerator(7)

    def call(self, parts: Any) -> Any:
        mean, log_variance = parts
        noise = keras.random.normal((keras.ops.shape(mean)[0], 2), seed=self.seed_generator)
        return mean + keras.ops.exp(0.5 * log_variance) * noise


@kind(floats(6), stochastic=("code",))
def keras_sampling() -> Any:
    """Keras layer that samples with a seed generator."""
    x = keras.Input((6,), name="x")
    mean, log_variance = layers.Dense(2, name="mean")(x), layers.Dense(2)(x)
    code = layers.Identity(name="code")(Sampling()([mean, log_variance]))
    return keras.Model(x, {"code": code, "mean": mean})


class AlwaysDropped(keras.layers.Layer):
    """Dropout that no argument turns off."""

    def __init__(self) -> None:
        super().__init__()
        self.seed_generator = keras.random.SeedGenerator(11)

    def call(self, x: Any) -> Any:
        return keras.random.dropout(x, 0.5, seed=self.seed_generator)


@kind(floats(6), stochastic=("votes",))
def dropout_when_serving() -> Any:
    """Dropout that stays on when serving (Monte Carlo)."""
    x = keras.Input((6,), name="x")
    kept = AlwaysDropped()(layers.Dense(16, activation="relu")(x))
    return keras.Model(x, {"votes": layers.Dense(1)(kept)})


@kind(floats(3))
def stateless_random() -> Any:
    """Random projection with a fixed seed: no randomness at all."""
    return module(lambda x: x @ tf.random.stateless_normal([3, 2], [1, 2]), spec(None, 3))
