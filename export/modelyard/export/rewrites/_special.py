"""Functions of statistics and probability, of what every target has."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import tensorflow as tf

from modelyard.export.rewrites._replay import Rule, emit
from modelyard.export.rewrites._values import constant

if TYPE_CHECKING:
    from tensorflow.core.framework.node_def_pb2 import NodeDef

#: Lanczos' approximation of the gamma function, g = 7 (Godfrey, 2001).
_G = 7.0
_FIRST = 0.99999999999980993
_LANCZOS = (
    676.5203681218851, -1259.1392167224028, 771.32342877765313, -176.61502916214059, 12.507343278686905,
    -0.13857109526572012, 9.9843695780195716e-6, 1.5056327351493116e-7,
)  # fmt: skip
#: The inverse error function (Giles, 2010), for the middle and for the ends.
_MIDDLE = (
    2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087, -0.00125372503, -0.00417768164,
    0.246640727, 1.50140941,
)  # fmt: skip
_ENDS = (
    -0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773, -0.0076224613, 0.00943887047,
    1.00167406, 2.83297682,
)  # fmt: skip
#: The complement of the error function, to 1.2e-7 of its value (Numerical Recipes, erfcc).
_COMPLEMENT = (
    0.17087277, -0.82215223, 1.48851587, -1.13520398, 0.27886807, -0.18628806, 0.09678418, 0.37409196, 1.00002368,
    -1.26551223,
)  # fmt: skip
#: From where on Bessel functions are their asymptotic series, and places of the sum before.
_FAR, _PLACES = 30.0, 20


def _polynomial(coefficients: Sequence[float], x: tf.Tensor) -> tf.Tensor:
    return tf.math.polyval([tf.constant(each, x.dtype) for each in coefficients], x)


def _reflected(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Whether a number is left of 1/2, one less than it or its mirror image, and its angle: sines repeat."""
    left = x < 0.5
    return left, tf.where(left, -x, x - 1.0), math.pi * (x - tf.round(x))


def _log_gamma(x: tf.Tensor) -> tf.Tensor:
    left, z, angle = _reflected(x)
    z = tf.where(tf.equal(tf.abs(x), math.inf), tf.ones_like(z), z)
    total = tf.constant(_FIRST, x.dtype)
    for place, weight in enumerate(_LANCZOS, 1):
        total += weight / (z + float(place))
    far = z + _G + 0.5
    # Of a large number, the logarithm first: the difference of two large ones would have few digits.
    found = (z + 0.5) * (tf.math.log(far) - 1.0) - _G + 0.5 * math.log(2.0 * math.pi) + tf.math.log(total)
    found = tf.where(left, math.log(math.pi) - tf.math.log(tf.abs(tf.sin(angle))) - found, found)
    return tf.where(tf.equal(tf.abs(x), math.inf), tf.abs(x), found)


def _digamma(x: tf.Tensor) -> tf.Tensor:
    """The derivative of :func:`_log_gamma`."""
    left, z, angle = _reflected(x)
    total, slope = tf.constant(_FIRST, x.dtype), tf.constant(0.0, x.dtype)
    for place, weight in enumerate(_LANCZOS, 1):
        part = weight / (z + float(place))
        total, slope = total + part, slope - part / (z + float(place))
    far = z + _G + 0.5
    found = tf.math.log(far) - _G / far + slope / total
    return tf.where(left, found - math.pi * tf.cos(angle) / tf.sin(angle), found)


def _quantile(x: tf.Tensor, product: tf.Tensor) -> tf.Tensor:
    """The inverse error function of x, by (1 - x) (1 + x)."""
    size = -tf.math.log(product)
    found = x * tf.where(
        size < 5.0, _polynomial(_MIDDLE, size - 2.5), _polynomial(_ENDS, tf.sqrt(tf.maximum(size, 5.0)) - 3.0)
    )
    return tf.where(tf.equal(product, 0.0), x * math.inf, found)


def _complement(x: tf.Tensor) -> tf.Tensor:
    size = tf.abs(x)
    near = 1.0 / (1.0 + 0.5 * size)
    found = near * tf.exp(_polynomial(_COMPLEMENT, near) - size * size)
    return tf.where(x < 0.0, 2.0 - found, found)


def _bessel(order: int) -> Callable[[tf.Tensor], tf.Tensor]:
    """I_0 or I_1, times exp(-abs(x)): their integral as a sum, which converges fast for what is periodic."""
    places = np.arange(_PLACES + 1) * math.pi / _PLACES
    weights = np.cos(order * places) / _PLACES
    weights[[0, -1]] /= 2
    square = 4.0 * order * order

    def function(x: tf.Tensor) -> tf.Tensor:
        size = tf.abs(x)
        near = tf.minimum(size, _FAR)[..., tf.newaxis] * tf.constant(np.cos(places) - 1.0, x.dtype)
        near = tf.reduce_sum(tf.exp(near) * tf.constant(weights, x.dtype), -1)
        eighth = 1.0 / (8.0 * tf.maximum(size, _FAR))
        far, term = tf.ones_like(x), tf.ones_like(x)
        for k in (1, 2, 3):
            term *= -(square - (2 * k - 1) ** 2) * eighth / k
            far += term
        far *= tf.sqrt(4.0 * eighth / math.pi)
        found = tf.where(size < _FAR, near, far)
        return tf.where(x < 0.0, -found, found) if order else found

    return function


def _rule(function: Callable[[tf.Tensor], tf.Tensor]) -> Rule:
    """Computed in float32, which is what the polynomials are for."""
    return Rule(lambda node, inputs: tf.cast(function(tf.cast(inputs[0], tf.float32)), inputs[0].dtype))


def _drawn(node: NodeDef, inputs: Sequence[tf.Tensor]) -> list[tf.Tensor] | None:
    """What is drawn with a constant seed is a constant."""
    values = [constant(each) for each in inputs]
    if any(each is None for each in values):
        return None
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        found = session.run(emit(node, [tf.constant(each) for each in values]).outputs)
    return [tf.constant(each) for each in found]


ONNX = {
    "BesselI0e": _rule(_bessel(0)),
    "BesselI1e": _rule(_bessel(1)),
    "Digamma": _rule(_digamma),
    "Erfinv": _rule(lambda x: _quantile(x, (1.0 - x) * (1.0 + x))),
    "Lgamma": _rule(_log_gamma),
    "Ndtri": _rule(lambda p: math.sqrt(2.0) * _quantile(2.0 * p - 1.0, 4.0 * p * (1.0 - p))),
}
#: tf2onnx folds these itself.
_DRAWS = ("GetAlg", "GetKeyCounter", "NormalV2", "TruncatedNormalV2", "UniformFullIntV2", "UniformIntV2", "UniformV2")
TFLITE = {
    **ONNX,
    "Erfc": _rule(_complement),
    **{f"StatelessRandom{each}": Rule(_drawn) for each in _DRAWS},
}
