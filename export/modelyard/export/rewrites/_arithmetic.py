"""Functions of floats that a target lacks, or computes with less of than TensorFlow does."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import tensorflow as tf

from modelyard.export.rewrites._integers import NARROW, has_dtype
from modelyard.export.rewrites._replay import Rule

if TYPE_CHECKING:
    from tensorflow.core.framework.node_def_pb2 import NodeDef


def _rsqrt(x: tf.Tensor) -> tf.Tensor:
    """LiteRT has NaN for zero; the converter would make one of a quotient by the root alone."""
    return 1.0 / tf.abs(tf.sqrt(x))


def _log1p(x: tf.Tensor) -> tf.Tensor:
    """By Kahan: the rounding of the logarithm's argument is that of what it is divided by."""
    more = 1.0 + x
    exact = tf.logical_or(tf.equal(more, 1.0), tf.equal(x, math.inf))
    return tf.where(exact, x, tf.math.log(more) * (x / tf.where(exact, tf.ones_like(x), more - 1.0)))


def _expm1(x: tf.Tensor) -> tf.Tensor:
    power = tf.exp(x)
    less = power - 1.0
    inexact = tf.logical_and(tf.abs(x) < 0.5, tf.not_equal(power, 1.0))
    return tf.where(
        tf.equal(power, 1.0),
        x,
        tf.where(inexact, less * x / tf.where(inexact, tf.math.log(power), tf.ones_like(x)), less),
    )


def _sinh(x: tf.Tensor) -> tf.Tensor:
    less = tf.math.expm1(x)
    return tf.where(tf.abs(x) < 1.0, 0.5 * (less + less / (less + 1.0)), 0.5 * (tf.exp(x) - tf.exp(-x)))


def _asinh(x: tf.Tensor) -> tf.Tensor:
    size = tf.abs(x)
    near = tf.math.log1p(size + size * size / (1.0 + tf.sqrt(1.0 + size * size)))
    # The square of a large number is infinite.
    return tf.sign(x) * tf.where(size < 1e9, near, tf.math.log(size) + math.log(2.0))


def _acosh(x: tf.Tensor) -> tf.Tensor:
    more = x - 1.0
    return tf.math.log1p(more + tf.sqrt(more) * tf.sqrt(x + 1.0))


def _softplus(x: tf.Tensor) -> tf.Tensor:
    """TFLite's converter writes the logarithm of 1 + exp(x), which is infinite from 89 on."""
    return tf.maximum(x, 0.0) + tf.math.log(1.0 + tf.exp(-tf.abs(x)))


def _erf(x: tf.Tensor) -> tf.Tensor:
    """By the quotient of polynomials that TensorFlow's own kernel has."""
    x = tf.clip_by_value(x, -3.832506856900711, 3.832506856900711)
    square = x * x
    above = tf.math.polyval(
        [tf.constant(c, x.dtype) for c in (
            0.00022905065861350646, 0.0034082910107109506, 0.050955695062380861, 0.18520832239976145,
            1.128379143519084,
        )], square,
    )  # fmt: skip
    below = tf.math.polyval(
        [tf.constant(c, x.dtype) for c in (
            -1.1791602954361697e-7, 0.000023547966471313185, 0.0010179625278914885, 0.014070470171167667,
            0.11098505178285362, 0.49746925110067538, 1.0,
        )], square,
    )  # fmt: skip
    return x * above / below


def _one(function: Callable[[tf.Tensor], tf.Tensor]) -> Rule:
    return Rule(lambda node, inputs: function(inputs[0]))


def _mul_no_nan(node: NodeDef, inputs: Sequence[tf.Tensor]) -> tf.Tensor:
    x, y = inputs
    return tf.where(tf.equal(y, 0.0), tf.zeros_like(x * y), x * y)


def _xdivy(node: NodeDef, inputs: Sequence[tf.Tensor]) -> tf.Tensor:
    x, y = inputs
    return x / tf.where(tf.equal(x, 0.0), tf.ones([], y.dtype), y)


def _times(function: Callable[[tf.Tensor], tf.Tensor]) -> Rule:
    """A number times a function of another; nothing times anything is nothing."""

    def build(node: NodeDef, inputs: Sequence[tf.Tensor]) -> tf.Tensor:
        x, y = inputs
        return tf.where(tf.equal(x, 0.0), tf.zeros_like(x * y), x * function(y))

    return Rule(build)


def _angle(node: NodeDef, inputs: Sequence[tf.Tensor]) -> tf.Tensor | None:
    """Of two tensors of one shape: TFLite's operator does not broadcast."""
    y, x = inputs
    if x.shape.rank is not None and x.shape == y.shape:
        return None
    return tf.atan2(y * tf.ones_like(x), x * tf.ones_like(y))


def _euclidean(node: NodeDef, inputs: Sequence[tf.Tensor]) -> tf.Tensor:
    return tf.sqrt(tf.reduce_sum(tf.square(inputs[0]), inputs[1], keepdims=node.attr["keep_dims"].b))


def _shapes(node: NodeDef, inputs: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    return [tf.shape(each, tf.as_dtype(node.attr["out_type"].type)) for each in inputs]


def _clip(node: NodeDef, inputs: Sequence[tf.Tensor]) -> tf.Tensor:
    x, low, high = inputs
    return tf.maximum(low, tf.minimum(x, high))


def _dot(node: NodeDef, inputs: Sequence[tf.Tensor]) -> tf.Tensor:
    """An Einsum of two factors with the same letters: TFLite's makes a product of matrices of it, and stops."""
    x, y = inputs
    sources, result = node.attr["equation"].s.decode().split("->")
    first, second = sources.split(",")
    kept = [letter for letter in first if letter in result]
    if "".join(kept) != result:
        return None
    y = tf.transpose(y, [second.index(letter) for letter in first])
    return tf.reduce_sum(x * y, [i for i, letter in enumerate(first) if letter not in result])


def _is_dot(node: NodeDef) -> bool:
    sources, _, result = node.attr["equation"].s.decode().partition("->")
    first, _, second = sources.partition(",")
    return first.isalpha() and len(set(first)) == len(first) and sorted(first) == sorted(second) and first != result


BOTH = {
    "EuclideanNorm": Rule(_euclidean),
    "L2Loss": _one(lambda x: 0.5 * tf.reduce_sum(tf.square(x))),
    "MulNoNan": Rule(_mul_no_nan),
    "ShapeN": Rule(_shapes),
}
TFLITE = {
    **BOTH,
    "Acos": _one(lambda x: tf.atan2(tf.sqrt((1.0 - x) * (1.0 + x)), x)),
    "Acosh": _one(_acosh),
    "Asin": _one(lambda x: tf.atan2(x, tf.sqrt((1.0 - x) * (1.0 + x)))),
    "Asinh": _one(_asinh),
    "Atan": _one(lambda x: tf.atan2(x, tf.ones_like(x))),
    "Atan2": Rule(_angle),
    "Atanh": _one(lambda x: 0.5 * tf.math.log1p(2.0 * x / (1.0 - x))),
    "ClipByValue": Rule(_clip),
    "Cosh": _one(lambda x: 0.5 * (tf.exp(x) + tf.exp(-x))),
    "Einsum": Rule(_dot, _is_dot),
    "Erf": _one(_erf),
    # What normalizes a batch has no zeros.
    "Rsqrt": Rule(lambda node, inputs: _rsqrt(inputs[0]), lambda node: "batchnorm" not in node.name),
    "Sinh": _one(_sinh),
    "Softplus": _one(_softplus),
    "Tan": _one(lambda x: tf.sin(x) / tf.cos(x)),
    "TensorScatterSub": Rule(lambda node, inputs: tf.tensor_scatter_nd_add(*inputs[:2], -inputs[2])),
}
ONNX = {
    **BOTH,
    "ClipByValue": Rule(_clip, has_dtype(*NARROW, tf.int32, tf.int64)),
    "Expm1": _one(_expm1),
    "Log1p": _one(_log1p),
    "Xdivy": Rule(_xdivy),
    "Xlog1py": _times(tf.math.log1p),
    "Xlogy": _times(tf.math.log),
}
