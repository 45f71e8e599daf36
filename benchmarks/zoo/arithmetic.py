"""Operators of integers, of linear algebra, of indices."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from benchmarks.zoo._kind import floats, integers, kind, module, named, spec, weights


@kind(integers(500, 3, low=-500))
def floor_division() -> Any:
    """Floor division and remainder of negatives."""
    return module(lambda x: {"quotient": x // 7, "rest": x % 7}, spec(None, 3, dtype=tf.int32))


@kind(integers(500, 3, low=-500, dtype=np.int64))
def int64_arithmetic() -> Any:
    """int64: sums, products, floor division."""
    return module(lambda x: {"a": x * 3 - 2, "b": tf.reduce_sum(x, 1), "c": x // 3}, spec(None, 3, dtype=tf.int64))


@kind(integers(256, 3, dtype=np.uint8))
def uint8_arithmetic() -> Any:
    """uint8: scaled, halved, wrapped around."""
    return module(
        lambda x: {"a": tf.cast(x, tf.float32) / 255.0, "b": x // 2, "c": x + 100}, spec(None, 3, dtype=tf.uint8)
    )


@kind(integers(127, 3, low=-128, dtype=np.int8))
def int8_arithmetic() -> Any:
    """int8: sums, largest, floor division."""
    return module(
        lambda x: {"a": x + x, "b": tf.reduce_max(x, 1), "c": x // tf.constant(3, tf.int8)},
        spec(None, 3, dtype=tf.int8),
    )


@kind(integers(1000, 3))
def bitwise() -> Any:
    """Bitwise and, or, shifts."""
    bits = tf.bitwise
    return module(
        lambda x: {"a": bits.bitwise_and(x, 7), "b": bits.bitwise_or(x, 8), "c": bits.right_shift(x, 2)},
        spec(None, 3, dtype=tf.int32),
    )


@kind(floats(4, 3))
def einsum_ellipsis() -> Any:
    """Einsum with an ellipsis."""
    w = weights(3, 2)
    return module(lambda x: tf.einsum("...i,ij->...j", x, w), spec(None, 4, 3), w=w)


@kind(floats(5))
def cumulative() -> Any:
    """Cumulative products and exclusive reversed sums."""
    return module(
        lambda x: {"p": tf.math.cumprod(x, 1), "s": tf.math.cumsum(x, 1, exclusive=True, reverse=True)}, spec(None, 5)
    )


@kind(floats(3, 3), tolerance=1e-3)
def linear_algebra() -> Any:
    """Inverse, determinant."""

    def serve(x: Any) -> Any:
        square = tf.matmul(x, x, transpose_b=True) + tf.eye(3)
        return {"inverse": tf.linalg.inv(square), "determinant": tf.linalg.det(x)}

    return module(serve, spec(None, 3, 3))


@kind(floats(3, 3), tolerance=1e-3)
def gaussian_process() -> Any:
    """Cholesky and triangular solve: a Gaussian process."""

    def serve(x: Any) -> Any:
        factor = tf.linalg.cholesky(tf.matmul(x, x, transpose_b=True) + tf.eye(3))
        return tf.linalg.triangular_solve(factor, tf.reduce_sum(x, -1, keepdims=True))

    return module(serve, spec(None, 3, 3))


@kind(floats(5))
def sorting() -> Any:
    """Sorted values, their places, the best two."""

    def serve(x: Any) -> Any:
        best, place = tf.math.top_k(x, 2)
        return {"sorted": tf.sort(x, 1), "order": tf.argsort(x, 1), "best": best, "place": place}

    return module(serve, spec(None, 5))


@kind(named(x=floats(5, 3), index=integers(5, 2, 1)))
def gather_nd() -> Any:
    """gather_nd along the batch."""
    return module(
        lambda x, index: tf.gather_nd(x, index, batch_dims=1), spec(None, 5, 3), spec(None, 2, 1, dtype=tf.int32)
    )


@kind(floats(3))
def scatter_nd() -> Any:
    """A value of each row replaced (tensor_scatter_nd_update)."""

    def serve(x: Any) -> Any:
        rows = tf.range(tf.shape(x)[0])
        return tf.tensor_scatter_nd_update(x, tf.stack([rows, tf.zeros_like(rows)], 1), tf.reduce_sum(x, 1))

    return module(serve, spec(None, 3))


@kind(integers(6, 8))
def histogram() -> Any:
    """Counts of codes, one histogram for each row."""
    return module(
        lambda codes: tf.math.bincount(codes, minlength=6, maxlength=6, axis=-1), spec(None, 8, dtype=tf.int32)
    )


@kind(floats(4))
def search_sorted() -> Any:
    """Searchsorted in learned edges."""
    edges = tf.constant([-1.0, -0.3, 0.2, 0.9])
    return module(lambda x: tf.reshape(tf.searchsorted(edges, tf.reshape(x, [-1])), tf.shape(x)), spec(None, 4))


@kind(lambda rng, n: rng.normal(size=(n, 3)))
def float64() -> Any:
    """float64 throughout."""
    w = tf.Variable(np.random.default_rng(0).normal(size=(3, 2)))
    return module(lambda x: tf.tanh(x @ w), spec(None, 3, dtype=tf.float64), w=w)


@kind(lambda rng, n: rng.uniform(0.1, 4.0, (n, 4)).astype(np.float32), tolerance=1e-3)
def special_functions() -> Any:
    """erf, lgamma, digamma, Bessel, sinh, atan2."""

    def serve(x: Any) -> Any:
        return {
            "erf": tf.math.erf(x),
            "lgamma": tf.math.lgamma(x),
            "digamma": tf.math.digamma(x),
            "bessel": tf.math.special.bessel_i0e(x),
            "more": tf.math.atan2(tf.sinh(x), tf.math.expm1(x)),
        }

    return module(serve, spec(None, 4))


@kind(floats(4))
def booleans() -> Any:
    """Boolean outputs, any, all, exclusive or."""

    def serve(x: Any) -> Any:
        above = x > 0
        return {"any": tf.reduce_any(above, 1), "odd": tf.math.logical_xor(above[:, 0], above[:, 1]), "above": above}

    return module(serve, spec(None, 4))
