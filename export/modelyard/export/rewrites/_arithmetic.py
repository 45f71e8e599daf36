"""Numbers that a target computes with less of than TensorFlow does, and functions of one number."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import tensorflow as tf

from modelyard.export.rewrites._replay import Rule, emit
from modelyard.export.rewrites._values import constant

if TYPE_CHECKING:
    from tensorflow.core.framework.node_def_pb2 import NodeDef

#: By narrow type, one that the runtimes compute with and that holds its numbers.
_WIDE = {tf.int8: tf.int32, tf.uint8: tf.int32, tf.int16: tf.int32, tf.uint16: tf.int32, tf.uint32: tf.int64}
_WIDENED = (
    "Abs", "Add", "AddN", "AddV2", "ArgMax", "ArgMin", "ClipByValue", "Cumsum", "Equal", "FloorDiv", "FloorMod",
    "Greater", "GreaterEqual", "Less", "LessEqual", "Max", "Maximum", "Mean", "Min", "Minimum", "Mul", "Neg",
    "NotEqual", "Pow", "Prod", "Relu", "Square", "SquaredDifference", "Sub", "Sum", "TopKV2", "TruncateDiv",
)  # fmt: skip
#: What onnxruntime has no kernels of for them; a quotient is made of differences, which have no room.
_REDUCED = ("FloorDiv", "Max", "Maximum", "Mean", "Min", "Minimum", "Prod", "Sum")


def has_dtype(*dtypes: tf.DType, attribute: str = "T") -> Callable[[NodeDef], bool]:
    """A test of a ``NodeDef``'s type."""
    kinds = {each.as_datatype_enum for each in dtypes}
    return lambda node: node.attr[attribute].type in kinds


def computed_as(node: NodeDef, inputs: Sequence[tf.Tensor], dtype: tf.DType) -> list[tf.Tensor]:
    """An operation in another type than its own, its results cast back."""
    own = tf.as_dtype(node.attr["T"].type)
    operation = emit(node, [tf.cast(each, dtype) if each.dtype == own else each for each in inputs], T=dtype)
    arguments = zip(operation.outputs, operation.op_def.output_arg, strict=True)
    return [tf.cast(each, own) if argument.type_attr == "T" else each for each, argument in arguments]


def _widen(node: NodeDef, inputs: Sequence[tf.Tensor]) -> tf.Tensor:
    wide = _WIDE.get(tf.as_dtype(node.attr["T"].type))
    return None if wide is None else computed_as(node, inputs, wide)


def _chosen(node: NodeDef, inputs: Sequence[tf.Tensor]) -> tf.Tensor:
    """The larger or smaller of two: onnxruntime 1.31 compares the lower halves of int64 (2**31 with 50)."""
    x, y = inputs
    if x.dtype != tf.int64:
        return _widen(node, inputs)
    return tf.where(x > y if node.op == "Maximum" else x < y, x, y)


def _extreme(node: NodeDef, inputs: Sequence[tf.Tensor]) -> tf.Tensor | None:
    """The largest or smallest along axes, of int64 by a search for the first: see above."""
    x, axes = inputs[0], constant(inputs[1])
    if x.dtype != tf.int64:
        return _widen(node, inputs)
    if axes is None or x.shape.rank is None or not axes.size:
        return None
    for axis in sorted({int(axis) % x.shape.rank for axis in axes.ravel()}, reverse=True):
        order = [each for each in range(x.shape.rank) if each != axis]
        x = tf.transpose(x, [*order, axis])
        # The order is reversed so without a number that has no counterpart.
        x = x if node.op == "Max" else -1 - x
        if not x.shape[-1]:
            # There may be nothing along the axis.
            x = tf.pad(x, [[0, 0]] * len(order) + [[0, 1]], constant_values=x.dtype.min)
        x = tf.math.top_k(x, 1)[0][..., 0]
        x = x if node.op == "Max" else -1 - x
        x = tf.expand_dims(x, axis) if node.attr["keep_dims"].b else x
    return x


def _floor_div(node: NodeDef, inputs: Sequence[tf.Tensor]) -> tf.Tensor:
    """TFLite has the remainder of all integers, the quotient of some."""
    x, y = inputs
    if x.dtype in (tf.float32, tf.int32):
        return None
    wide = _WIDE.get(x.dtype, x.dtype)
    if wide == tf.int32:
        return computed_as(node, inputs, wide)
    rest, divisor = tf.cast(x, wide), tf.cast(y, wide)
    rest -= tf.math.floormod(rest, divisor)
    quotient = tf.zeros_like(rest)
    # What is left divides without a rest; float32 gives 24 bits of the quotient in each of three steps.
    for _ in range(3):
        part = tf.cast(tf.round(tf.cast(rest, tf.float32) / tf.cast(divisor, tf.float32)), wide)
        quotient += part
        rest -= part * divisor
    return tf.cast(quotient, x.dtype)


def _abs(node: NodeDef, inputs: Sequence[tf.Tensor]) -> tf.Tensor:
    return tf.maximum(inputs[0], -inputs[0]) if inputs[0].dtype == tf.int64 else _widen(node, inputs)


def _truncate_mod(node: NodeDef, inputs: Sequence[tf.Tensor]) -> tf.Tensor:
    x, y = inputs
    if not x.dtype.is_integer:
        return None
    rest = tf.math.floormod(tf.abs(x), tf.abs(y))
    return tf.where(x < 0, -rest, rest)


def _matmul(node: NodeDef, inputs: Sequence[tf.Tensor]) -> tf.Tensor:
    """A product of matrices of integers, exact as those of floats are not."""
    x, y = (tf.cast(each, tf.int32) for each in inputs)
    first, second = ("transpose_a", "transpose_b") if "transpose_a" in node.attr else ("adj_x", "adj_y")
    x = tf.linalg.matrix_transpose(x) if node.attr[first].b else x
    y = tf.linalg.matrix_transpose(y) if node.attr[second].b else y
    kind = node.attr["Tout"].type if "Tout" in node.attr else node.attr["T"].type
    return tf.cast(tf.reduce_sum(x[..., tf.newaxis] * y[..., tf.newaxis, :, :], -2), tf.as_dtype(kind))


def _bits(operation: str, node: NodeDef, inputs: Sequence[tf.Tensor]) -> tf.Tensor:
    """TFLite has exclusive or, and shifts to the right."""
    x, y = inputs
    if x.dtype == tf.int64:
        raise ValueError(f"{node.op} of int64 has no operator in TFLite; cast to int32")
    if tf.as_dtype(x.dtype).is_unsigned:
        wide = tf.cast(x, tf.int32), tf.cast(y, tf.int32)
        return tf.cast(_bits(operation, node, wide), x.dtype)
    one = tf.ones([], x.dtype)
    high = tf.bitwise.right_shift(x, one), tf.bitwise.right_shift(y, one)
    # x + y counts the bits of both twice, and their exclusive or does not count them.
    both = tf.bitwise.right_shift(high[0] + high[1] - tf.bitwise.bitwise_xor(*high), one) * 2
    both += (x - 2 * high[0]) * (y - 2 * high[1])
    return both if operation == "and" else tf.bitwise.bitwise_xor(x, y) + both


def _invert(node: NodeDef, inputs: Sequence[tf.Tensor]) -> tf.Tensor:
    (x,) = inputs
    if tf.as_dtype(x.dtype).is_unsigned:
        wide = _WIDE[x.dtype]
        return tf.cast(x.dtype.max - tf.cast(x, wide), x.dtype)
    return -1 - x


def _left_shift(node: NodeDef, inputs: Sequence[tf.Tensor]) -> tf.Tensor:
    x, y = inputs
    wide = _WIDE.get(x.dtype, x.dtype)
    bits = 63 if wide == tf.int64 else 31
    powers = tf.constant([1 << n if n < bits else -(1 << bits) for n in range(bits + 1)], wide)
    return tf.cast(tf.cast(x, wide) * tf.gather(powers, tf.cast(y, tf.int32)), x.dtype)


def _right_shift(node: NodeDef, inputs: Sequence[tf.Tensor]) -> tf.Tensor:
    """The quotient by a power of two, rounded down."""
    x, y = inputs
    powers = tf.constant([1 << n for n in range(63)], tf.int64)
    return tf.cast(tf.cast(x, tf.int64) // tf.gather(powers, tf.cast(y, tf.int32)), x.dtype)


def _rsqrt(x: tf.Tensor) -> tf.Tensor:
    """LiteRT has NaN for zero; the converter would make one of a quotient by the root alone."""
    return 1.0 / tf.abs(tf.sqrt(x))


def _sign(x: tf.Tensor) -> tf.Tensor:
    """TFLite's converter has it for floats."""
    return tf.cast(x > 0, x.dtype) - tf.cast(x < 0, x.dtype)


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


def _xlog1py(node: NodeDef, inputs: Sequence[tf.Tensor]) -> tf.Tensor:
    x, y = inputs
    return tf.where(tf.equal(x, 0.0), tf.zeros_like(x * y), x * tf.math.log1p(y))


def _in_single(node: NodeDef, inputs: Sequence[tf.Tensor]) -> tf.Tensor:
    """Onnxruntime has no convolution of float64."""
    return computed_as(node, inputs, tf.float32)


def _euclidean(node: NodeDef, inputs: Sequence[tf.Tensor]) -> tf.Tensor:
    return tf.sqrt(tf.reduce_sum(tf.square(inputs[0]), inputs[1], keepdims=node.attr["keep_dims"].b))


def _shapes(node: NodeDef, inputs: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    return [tf.shape(each, tf.as_dtype(node.attr["out_type"].type)) for each in inputs]


def _clip(node: NodeDef, inputs: Sequence[tf.Tensor]) -> tf.Tensor:
    x, low, high = inputs
    return tf.maximum(low, tf.minimum(x, high))


def _one_hot(node: NodeDef, inputs: Sequence[tf.Tensor]) -> tf.Tensor:
    """ONNX counts indices below zero from the end, where TensorFlow's are none; TFLite has few types."""
    indices, depth, on, off = inputs
    axis = node.attr["axis"].i
    shape = [1] * (indices.shape.rank + 1)
    shape[axis] = -1
    kinds = tf.reshape(tf.range(depth), shape)
    return tf.where(tf.equal(tf.expand_dims(tf.cast(indices, tf.int32), axis), kinds), on, off)


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


_NARROW = tuple(_WIDE)
#: Of which ONNX or onnxruntime has no shifts.
_SHIFTED = (tf.int8, tf.int16, tf.int32, tf.int64, tf.uint16)
BOTH = {
    "EuclideanNorm": Rule(_euclidean),
    "MulNoNan": Rule(_mul_no_nan),
    "ShapeN": Rule(_shapes),
    "TruncateMod": Rule(_truncate_mod),
}
TFLITE = {
    **{op: Rule(_widen, has_dtype(*_NARROW)) for op in _WIDENED},
    **BOTH,
    "Abs": Rule(_abs, has_dtype(*_NARROW, tf.int64)),
    "Acos": _one(lambda x: tf.atan2(tf.sqrt((1.0 - x) * (1.0 + x)), x)),
    "Acosh": _one(_acosh),
    "Asin": _one(lambda x: tf.atan2(x, tf.sqrt((1.0 - x) * (1.0 + x)))),
    "Asinh": _one(_asinh),
    "Atan": _one(lambda x: tf.atan2(x, tf.ones_like(x))),
    "Atanh": _one(lambda x: 0.5 * tf.math.log1p(2.0 * x / (1.0 - x))),
    "BatchMatMulV2": Rule(_matmul, has_dtype(tf.int32, tf.int64)),
    "BitwiseAnd": Rule(lambda node, inputs: _bits("and", node, inputs)),
    "BitwiseOr": Rule(lambda node, inputs: _bits("or", node, inputs)),
    "ClipByValue": Rule(_clip),
    "Cosh": _one(lambda x: 0.5 * (tf.exp(x) + tf.exp(-x))),
    "Einsum": Rule(_dot, _is_dot),
    "Erf": _one(_erf),
    "FloorDiv": Rule(_floor_div, has_dtype(*_NARROW, tf.int64)),
    "Invert": Rule(_invert),
    "LeftShift": Rule(_left_shift),
    "MatMul": Rule(_matmul, has_dtype(tf.int32, tf.int64)),
    "OneHot": Rule(_one_hot, has_dtype(*_NARROW, attribute="TI")),
    # What normalizes a batch has no zeros.
    "Rsqrt": Rule(lambda node, inputs: _rsqrt(inputs[0]), lambda node: "batchnorm" not in node.name),
    "Sign": Rule(lambda node, inputs: _sign(inputs[0]), has_dtype(*_NARROW, tf.int32, tf.int64)),
    "Sinh": _one(_sinh),
    "Softplus": _one(_softplus),
    "Tan": _one(lambda x: tf.sin(x) / tf.cos(x)),
}
ONNX = {
    **{op: Rule(_widen, has_dtype(*_NARROW)) for op in _REDUCED},
    **{op: Rule(_chosen, has_dtype(*_NARROW, tf.int64)) for op in ("Maximum", "Minimum")},
    **{op: Rule(_extreme, has_dtype(*_NARROW, tf.int64)) for op in ("Max", "Min")},
    **BOTH,
    "ClipByValue": Rule(_clip, has_dtype(*_NARROW, tf.int32, tf.int64)),
    "Conv2D": Rule(_in_single, has_dtype(tf.float64)),
    "DepthwiseConv2dNative": Rule(_in_single, has_dtype(tf.float64)),
    "Expm1": _one(_expm1),
    "LeftShift": Rule(_left_shift, has_dtype(*_SHIFTED)),
    "Log1p": _one(_log1p),
    "OneHot": Rule(_one_hot),
    "RightShift": Rule(_right_shift, has_dtype(*_SHIFTED)),
    "Sign": Rule(lambda node, inputs: _sign(inputs[0]), has_dtype(tf.int64)),
    "Xdivy": Rule(_xdivy),
    "Xlog1py": Rule(_xlog1py),
}
