"""Integers: of types that a target computes nothing with, and operators that it has of some types only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import tensorflow as tf

from modelyard.export.rewrites._replay import Rule, emit
from modelyard.export.rewrites._values import constant, slices

if TYPE_CHECKING:
    from tensorflow.core.framework.node_def_pb2 import NodeDef

#: By narrow type, one that the runtimes compute with and that holds its numbers.
_WIDE = {tf.int8: tf.int32, tf.uint8: tf.int32, tf.int16: tf.int32, tf.uint16: tf.int32, tf.uint32: tf.int64}
_WIDENED = (
    "Add", "AddN", "AddV2", "ClipByValue", "Cumsum", "Equal", "FloorMod", "Greater", "GreaterEqual", "Less",
    "LessEqual", "Max", "Maximum", "Mean", "Min", "Minimum", "Mul", "Neg", "NotEqual", "Pow", "Prod", "Relu", "Square",
    "SquaredDifference", "Sub", "Sum", "TopKV2",
)  # fmt: skip
#: What onnxruntime has no kernels of for them; a quotient is made of differences, which have no room.
_REDUCED = ("FloorDiv", "Mean", "Prod", "Sum")


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


def _of_long(build: Callable[[NodeDef, Sequence[tf.Tensor]], object]) -> Rule:
    """What is built of int64, and of narrow types is the operator of a wider one."""
    return Rule(
        lambda node, inputs: (build if inputs[0].dtype == tf.int64 else _widen)(node, inputs),
        has_dtype(*NARROW, tf.int64),
    )


def _chosen(node: NodeDef, inputs: Sequence[tf.Tensor]) -> tf.Tensor:
    """The larger or smaller of two: onnxruntime 1.31 compares the lower halves of int64 (2**31 with 50)."""
    x, y = inputs
    return tf.where(x > y if node.op == "Maximum" else x < y, x, y)


def _extreme(node: NodeDef, inputs: Sequence[tf.Tensor]) -> tf.Tensor | None:
    """The largest or smallest along axes, of int64 by a search for the first: see above."""
    x, axes = inputs[0], constant(inputs[1])
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
    """TFLite has the remainder of all integers, the quotient of some, and an error for one of floats by zero."""
    x, y = inputs
    if x.dtype == tf.float32:
        return tf.floor(x / y)
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


def _bits(node: NodeDef, inputs: Sequence[tf.Tensor]) -> tf.Tensor:
    """TFLite has exclusive or, and shifts to the right, of 32 bits."""
    x, y = inputs
    operation = node.op.removeprefix("Bitwise")
    if x.dtype == tf.int64:
        upper = [tf.cast(each // 2**32, tf.int32) for each in inputs]
        # Of those from 2**31 on, less 2**32: LiteRT saturates where a cast has no room.
        lower = [tf.cast(tf.math.floormod(each + 2**31, 2**32) - 2**31, tf.int32) for each in inputs]
        high, low = (tf.cast(_bits_of_32(operation, *half), tf.int64) for half in (upper, lower))
        return high * 2**32 + tf.math.floormod(low, 2**32)
    if tf.as_dtype(x.dtype).is_unsigned:
        return tf.cast(_bits_of_32(operation, tf.cast(x, tf.int32), tf.cast(y, tf.int32)), x.dtype)
    return _bits_of_32(operation, x, y)


def _sign_bit(node: NodeDef, inputs: Sequence[tf.Tensor]) -> tf.Tensor | None:
    """What Keras takes of a float's bits, to tell zeros apart: ONNX has no other view of the same bits."""
    for bits, mask in (inputs, inputs[::-1]):
        is_view = bits.op.type == "Bitcast" and bits.op.inputs[0].dtype == tf.float32
        known = constant(mask) if is_view else None
        if known is not None and (known == mask.dtype.min).all():
            (x,) = bits.op.inputs
            below = tf.logical_or(x < 0.0, tf.logical_and(tf.equal(x, 0.0), 1.0 / x < 0.0))
            return tf.where(below, mask.dtype.min, tf.zeros([], mask.dtype))
    return None


def _bits_of_32(operation: str, x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    if operation == "Xor":
        return tf.bitwise.bitwise_xor(x, y)
    one = tf.ones([], x.dtype)
    high = tf.bitwise.right_shift(x, one), tf.bitwise.right_shift(y, one)
    # x + y counts the bits of both twice, and their exclusive or does not count them.
    both = tf.bitwise.right_shift(high[0] + high[1] - tf.bitwise.bitwise_xor(*high), one) * 2
    both += (x - 2 * high[0]) * (y - 2 * high[1])
    return both if operation == "And" else tf.bitwise.bitwise_xor(x, y) + both


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


def _sign(x: tf.Tensor) -> tf.Tensor:
    """TFLite's converter has it for floats."""
    return tf.cast(x > 0, x.dtype) - tf.cast(x < 0, x.dtype)


def _one_hot(node: NodeDef, inputs: Sequence[tf.Tensor]) -> tf.Tensor:
    """ONNX counts indices below zero from the end, where TensorFlow's are none; TFLite has few types."""
    indices, depth, on, off = inputs
    axis = node.attr["axis"].i
    shape = [1] * (indices.shape.rank + 1)
    shape[axis] = -1
    kinds = tf.reshape(tf.range(depth), shape)
    return tf.where(tf.equal(tf.expand_dims(tf.cast(indices, tf.int32), axis), kinds), on, off)


def _first_extreme(node: NodeDef, inputs: Sequence[tf.Tensor]) -> tf.Tensor | None:
    """The place of the largest or smallest int64: the first that is as large."""
    x, axis = inputs[0], constant(inputs[1])
    if axis is None:
        return None
    best = (tf.reduce_max if node.op == "ArgMax" else tf.reduce_min)(x, int(axis), keepdims=True)
    kind = tf.as_dtype(node.attr["output_type"].type)
    return tf.argmax(tf.cast(tf.equal(x, best), tf.float32), int(axis), output_type=kind)


def _truncate_div(node: NodeDef, inputs: Sequence[tf.Tensor]) -> tf.Tensor:
    x, y = inputs
    quotient = tf.abs(x) // tf.abs(y)
    return tf.where(tf.equal(x < 0, y < 0), quotient, -quotient)


def _parts(node: NodeDef, inputs: Sequence[tf.Tensor]) -> list[tf.Tensor] | None:
    """Equal parts of int64."""
    axis, x = constant(inputs[0]), inputs[1]
    size = None if axis is None or x.shape.rank is None else x.shape[int(axis)]
    if size is None:
        return None
    count = node.attr["num_split"].i
    return slices(x, int(axis), [size // count] * count)


def _unpacked(node: NodeDef, inputs: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    return [tf.gather(inputs[0], i, axis=node.attr["axis"].i) for i in range(node.attr["num"].i)]


NARROW = tuple(_WIDE)
#: Of which ONNX or onnxruntime has no shifts.
_SHIFTED = (tf.int8, tf.int16, tf.int32, tf.int64, tf.uint16)
TFLITE = {
    **{op: Rule(_widen, has_dtype(*NARROW)) for op in _WIDENED},
    "Abs": _of_long(lambda node, inputs: tf.maximum(inputs[0], -inputs[0])),
    "ArgMax": _of_long(_first_extreme),
    "ArgMin": _of_long(_first_extreme),
    "BatchMatMulV2": Rule(_matmul, has_dtype(tf.int32, tf.int64)),
    "BitwiseAnd": Rule(_bits),
    "BitwiseOr": Rule(_bits),
    "BitwiseXor": Rule(_bits, has_dtype(tf.int64)),
    "FloorDiv": Rule(_floor_div, has_dtype(*NARROW, tf.int64, tf.float32)),
    "Invert": Rule(_invert),
    "LeftShift": Rule(_left_shift),
    "MatMul": Rule(_matmul, has_dtype(tf.int32, tf.int64)),
    "OneHot": Rule(_one_hot, has_dtype(*NARROW, attribute="TI")),
    "RightShift": Rule(_right_shift, has_dtype(tf.int64)),
    "Sign": Rule(lambda node, inputs: _sign(inputs[0]), has_dtype(*NARROW, tf.int32, tf.int64)),
    "Split": Rule(_parts, has_dtype(tf.int64)),
    "TruncateDiv": _of_long(_truncate_div),
    "TruncateMod": Rule(_truncate_mod),
    "Unpack": Rule(_unpacked, has_dtype(tf.int64)),
}
ONNX = {
    **{op: Rule(_widen, has_dtype(*NARROW)) for op in _REDUCED},
    **{op: _of_long(_chosen) for op in ("Maximum", "Minimum")},
    **{op: _of_long(_extreme) for op in ("Max", "Min")},
    "Bitcast": Rule(lambda node, inputs: None),
    "BitwiseAnd": Rule(_sign_bit, has_dtype(tf.int32), alone=False),
    "LeftShift": Rule(_left_shift, has_dtype(*_SHIFTED)),
    "OneHot": Rule(_one_hot),
    "RightShift": Rule(_right_shift, has_dtype(*_SHIFTED)),
    "Sign": Rule(lambda node, inputs: _sign(inputs[0]), has_dtype(tf.int64)),
    "TruncateMod": Rule(_truncate_mod),
}
