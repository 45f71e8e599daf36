"""Batches that are no batches, dynamic shapes, control flow."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from benchmarks.zoo._kind import floats, integers, kind, module, named, spec, weights


@kind(named(x=floats(2), scale=lambda rng, n: np.float32(rng.normal())), batch=False)
def scalar_input() -> Any:
    """A scalar input beside a batch."""
    w = weights(2)
    return module(lambda x, scale: x * scale + w, spec(None, 2), spec(), w=w)


@kind(lambda rng, n: rng.normal(size=(4, 2)).astype(np.float32), batch=False)
def fixed_batch() -> Any:
    """A batch of always four."""
    w = weights(2, 3)
    return module(lambda x: x @ w, spec(4, 2), w=w)


@kind(lambda rng, n: rng.normal(size=(6, 6, 3)).astype(np.float32), batch=False)
def one_image() -> Any:
    """One image without a batch dimension."""
    w = weights(3, 3, 3, 2)
    return module(lambda image: tf.nn.conv2d(image[None], w, 1, "SAME")[0], spec(6, 6, 3), w=w)


@kind(lambda rng, n: {"a": np.float32(rng.normal()), "b": np.float32(rng.normal())}, batch=False)
def only_scalars() -> Any:
    """Scalars in, a scalar out."""
    return module(lambda a, b: tf.tanh(a) * b, spec(), spec())


@kind(floats(2))
def one_number_out() -> Any:
    """One number for the whole batch."""
    w = weights(2, 3)
    return module(lambda x: tf.reduce_mean(x @ w), spec(None, 2), w=w)


@kind(floats(2))
def batch_by_batch() -> Any:
    """Similarity of every row with every row."""
    w = weights(2, 3)
    return module(lambda x: tf.matmul(x @ w, x @ w, transpose_b=True), spec(None, 2), w=w)


@kind(integers(9, 2))
def unique_values() -> Any:
    """Unique values, as many as there are."""
    return module(lambda x: {"values": tf.unique(tf.reshape(x, [-1]))[0]}, spec(None, 2, dtype=tf.int32))


@kind(floats(3))
def nonzero_places() -> Any:
    """Places of positive values (tf.where)."""
    return module(lambda x: {"places": tf.where(x > 0)}, spec(None, 3))


@kind(floats(3))
def masked_logits() -> Any:
    """Logits masked with minus infinity."""
    w = weights(3, 3)
    return module(lambda x: tf.where(x > 0, x @ w, -np.inf), spec(None, 3), w=w)


@kind(named(a=floats(3), b=floats(1)))
def broadcast_inputs() -> Any:
    """Two inputs that broadcast."""
    w = weights(3, 2)
    return module(lambda a, b: a @ w + b, spec(None, 3), spec(None, 1), w=w)


@kind(lambda rng, n: np.abs(rng.normal(size=(n, 3))).astype(np.float32) * rng.choice([-1, 1]).astype(np.float32))
def branch() -> Any:
    """tf.cond over the whole batch."""
    w = weights(3, 3)
    return module(lambda x: tf.cond(tf.reduce_sum(x) > 0, lambda: x @ w, lambda: -(x @ w)), spec(None, 3), w=w)


@kind(floats(3))
def branch_functions() -> Any:
    """tf.cond over functions that are not inlined."""
    w = weights(3, 3)

    def make(sign: float) -> Any:
        function = tf.function(
            lambda x: tf.tanh(sign * x) @ w, autograph=False, experimental_attributes={"_noinline": True}
        )
        return function

    up, down = make(1.0), make(-2.0)
    return module(lambda x: tf.cond(tf.reduce_max(x) > 1.0, lambda: up(x), lambda: down(x)), spec(None, 3), w=w)


@kind(named(x=floats(3), which=lambda rng, n: np.int32(rng.integers(3))), batch=False)
def switch_case() -> Any:
    """tf.switch_case by a scalar input."""
    w = weights(3, 3)

    def serve(x: Any, which: Any) -> Any:
        return tf.switch_case(which, [lambda: x @ w, lambda: tf.sin(x), lambda: x * 0.5])

    return module(serve, spec(None, 3), spec(dtype=tf.int32), w=w)


@kind(floats(3))
def while_loop() -> Any:
    """while_loop of three rounds."""
    w = weights(3, 3)

    def serve(x: Any) -> Any:
        return tf.while_loop(lambda i, v: i < 3, lambda i, v: (i + 1, tf.tanh(v @ w)), [0, x])[1]

    return module(serve, spec(None, 3), w=w)


@kind(floats(3))
def loop_until() -> Any:
    """Loop until it converges (Newton's square root)."""

    def serve(x: Any) -> Any:
        target = tf.abs(x) + 0.1
        guess = target
        while tf.reduce_max(tf.abs(guess * guess - target)) > 1e-4:
            guess = 0.5 * (guess + target / guess)
        return guess

    return module(serve, spec(None, 3))


@kind(floats(5))
def map_rows() -> Any:
    """map_fn over rows."""
    return module(lambda x: tf.map_fn(lambda row: tf.sort(row) * 2.0, x), spec(None, 5))


@kind(floats(5))
def two_maps() -> Any:
    """Two map_fn in one graph."""
    return module(
        lambda x: tf.map_fn(lambda row: row * 2.0, x) + tf.map_fn(lambda row: tf.reverse(row, [0]), x), spec(None, 5)
    )


@kind(floats(5))
def vectorized_map() -> Any:
    """vectorized_map over rows."""
    w = weights(5, 2)
    return module(
        lambda x: tf.vectorized_map(lambda row: tf.linalg.matvec(tf.transpose(w), row), x), spec(None, 5), w=w
    )


@kind(floats(12))
def dynamic_reshape() -> Any:
    """Reshape, tile and slice by sizes computed from the input."""

    def serve(x: Any) -> Any:
        rows = tf.shape(x)[0]
        cube = tf.reshape(x, [rows, 3, tf.shape(x)[1] // 3])
        return {"tiled": tf.tile(cube, [1, 1, 2]), "half": cube[:, :, : tf.shape(cube)[2] // 2]}

    return module(serve, spec(None, 12))


@kind(lambda rng, n: rng.normal(size=(n, int(rng.integers(2, 9)))).astype(np.float32))
def free_width() -> Any:
    """Free width: softmax and mean over it."""
    return module(lambda x: {"share": tf.nn.softmax(x), "mean": tf.reduce_mean(x, 1)}, spec(None, None))


def _lengths(rng: Any, n: int) -> Any:
    return {"x": rng.normal(size=(n, 6, 3)).astype(np.float32), "length": rng.integers(1, 7, n).astype(np.int32)}


@kind(_lengths)
def sequence_mask() -> Any:
    """Mean over a length that is an input (sequence_mask)."""

    def serve(x: Any, length: Any) -> Any:
        mask = tf.sequence_mask(length, 6, tf.float32)[..., None]
        return tf.reduce_sum(x * mask, 1) / tf.reduce_sum(mask, 1)

    return module(serve, spec(None, 6, 3), spec(None, dtype=tf.int32))
