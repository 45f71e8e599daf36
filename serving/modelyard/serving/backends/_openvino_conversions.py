"""TensorFlow's operators of which OpenVINO's own reader makes something else, in what OpenVINO has."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from modelyard.errors import LoadError

#: Marks what stands for the bits of floats until it is known what is asked of them.
BITS = "modelyard_bits"


def add_conversions(reader: Any) -> None:
    """Has OpenVINO's reader of SavedModels take the conversions of this module for its own."""
    from openvino import opset15 as ops
    from openvino.frontend.tensorflow import ConversionExtension

    for operator, convert in _CONVERSIONS.items():
        reader.add_extension(ConversionExtension(operator, partial(convert, ops)))


def _bitcast(ops: Any, node: Any) -> list[Any]:
    """The bits of floats, of which OpenVINO has none; Keras' ``argmax`` and ``argmin`` ask for the sign's."""
    from openvino import Type

    x = node.get_input(0)
    if x.get_element_type() != Type.f32 or node.get_attribute("type") != Type.i32:
        raise LoadError("there is no counterpart for Bitcast")
    bits = ops.convert(x, "i32")
    bits.rt_info[BITS] = "1"
    return list(bits.outputs())


def _and(ops: Any, node: Any) -> list[Any]:
    first, second = node.get_input(0), node.get_input(1)
    for bits, mask in ((first, second), (second, first)):
        known = mask.get_node()
        if BITS not in bits.get_node().rt_info or known.get_type_name() != "Constant":
            continue
        if known.get_vector().tolist() == [-(2**31)]:
            x, zero = bits.get_node().input_value(0), np.float32(0)
            negative_zero = ops.logical_and(ops.equal(x, zero), ops.less(ops.divide(np.float32(1), x), zero))
            below = ops.logical_or(ops.less(x, zero), negative_zero)
            return list(ops.select(below, np.int32(-(2**31)), np.int32(0)).outputs())
    return list(ops.bitwise_and(first, second).outputs())


def _hsv_to_rgb(ops: Any, node: Any) -> list[Any]:
    """``tf.image.hsv_to_rgb``: OpenVINO (2026.4) makes grey of a hue of 1, which is red."""
    last = ops.constant(np.int64(-1))
    hue, saturation, value = ops.split(node.get_input(0), last, 3).outputs()
    places = ops.add(ops.multiply(hue, np.float32(6)), np.array([5, 3, 1], np.float32))
    places = ops.floor_mod(places, np.float32(6))
    away = ops.clamp(ops.minimum(places, ops.subtract(np.float32(4), places)), 0.0, 1.0)
    return list(ops.subtract(value, ops.multiply(ops.multiply(value, saturation), away)).outputs())


def _log_softmax(ops: Any, node: Any) -> list[Any]:
    """``tf.nn.log_softmax``: OpenVINO (2026.4) leaves out transpositions around its own, which are other axes'."""
    last = ops.constant(np.array([-1], np.int64))
    scores = node.get_input(0)
    scores = ops.subtract(scores, ops.reduce_max(scores, last, True))
    total = ops.log(ops.reduce_sum(ops.exp(scores), last, True))
    return list(ops.subtract(scores, total).outputs())


def _normalize_locally(ops: Any, node: Any) -> list[Any]:
    """``tf.nn.local_response_normalization``: OpenVINO's (2026.4) has other windows."""
    x = node.get_input(0)
    channels = x.get_partial_shape()[-1]
    if channels.is_dynamic:
        raise LoadError("there is no counterpart for LRN of an unknown number of channels")
    radius, count = node.get_attribute("depth_radius", 5), channels.get_length()
    places = np.arange(count)
    near = (np.abs(places[:, None] - places) <= radius).astype(np.float32) * node.get_attribute("alpha", 1.0)
    sums = ops.add(ops.matmul(ops.multiply(x, x), near, False, False), np.float32(node.get_attribute("bias", 1.0)))
    return list(ops.divide(x, ops.power(sums, np.float32(node.get_attribute("beta", 0.5)))).outputs())


def _scatter(ops: Any, node: Any) -> list[Any]:
    """``tf.scatter_nd``, which adds what has the same place; OpenVINO's own keeps the last (2026.4)."""
    places, updates, shape = (node.get_input(index) for index in range(3))
    zero = ops.convert_like(ops.constant(np.int64(0)), updates)
    return list(ops.scatter_nd_update(ops.broadcast(zero, shape), places, updates, "sum").outputs())


def _tile(ops: Any, node: Any) -> list[Any]:
    """``tf.tile``: where OpenVINO (2026.4) moves a transposition past it, other axes are repeated.

    It moves none past a reshape.
    """

    def fixed(x: Any) -> Any:
        return ops.reshape(x, ops.shape_of(x), False)

    return list(fixed(ops.tile(fixed(node.get_input(0)), node.get_input(1))).outputs())


def _cross(ops: Any, node: Any) -> list[Any]:
    """``tf.linalg.cross``."""

    def turned(index: int, *places: int) -> Any:
        return ops.gather(node.get_input(index), np.array(places), np.int64(-1))

    first = ops.multiply(turned(0, 1, 2, 0), turned(1, 2, 0, 1))
    return list(ops.subtract(first, ops.multiply(turned(0, 2, 0, 1), turned(1, 1, 2, 0))).outputs())


def _search(right: bool, ops: Any, node: Any) -> list[Any]:
    """``tf.searchsorted``."""
    from openvino import Type

    found = ops.search_sorted(node.get_input(0), node.get_input(1), right_mode=right)
    return list(ops.convert(found, node.get_attribute("out_type", Type.i32)).outputs())


def _main_diagonal(node: Any, operator: str, *constants: tuple[int, int]) -> None:
    """Raises a LoadError unless some inputs are the constants of the main diagonal of as many rows as there are."""
    for index, expected in constants:
        known = node.get_input(index).get_node()
        if known.get_type_name() != "Constant" or set(known.get_vector().tolist()) != {expected}:
            raise LoadError(f"there is no counterpart for {operator} of other diagonals than the main one")


def _on_diagonal(ops: Any, rows: Any, columns: Any) -> Any:
    """A matrix of whether a place is on the main diagonal."""
    zero, one = np.int64(0), np.int64(1)
    row, column = (ops.range(zero, size, one, "i64") for size in (rows, columns))
    return ops.equal(ops.unsqueeze(row, one), ops.unsqueeze(column, zero))


def _size(ops: Any, x: Any, axis: int) -> Any:
    return ops.gather(ops.shape_of(x), np.int64(axis), np.int64(0))


def _diagonal_matrix(ops: Any, node: Any) -> list[Any]:
    """``tf.linalg.diag`` of the main diagonal."""
    _main_diagonal(node, "MatrixDiagV3", (1, 0), (2, -1), (3, -1))
    values, size = node.get_input(0), _size(ops, node.get_input(0), -1)
    rows = ops.unsqueeze(values, np.int64(-1))
    return list(ops.select(_on_diagonal(ops, size, size), rows, node.get_input(4)).outputs())


def _diagonal_part(ops: Any, node: Any) -> list[Any]:
    """``tf.linalg.diag_part`` of the main diagonal."""
    _main_diagonal(node, "MatrixDiagPartV3", (1, 0))
    x, last = node.get_input(0), np.int64(-1)
    rows, columns = _size(ops, x, -2), _size(ops, x, -1)
    zero = ops.convert_like(ops.constant(np.int64(0)), x)
    values = ops.reduce_sum(ops.select(_on_diagonal(ops, rows, columns), x, zero), last)
    places = ops.range(np.int64(0), ops.minimum(rows, columns), np.int64(1), "i64")
    return list(ops.gather(values, places, last).outputs())


def _with_diagonal(ops: Any, node: Any) -> list[Any]:
    """``tf.linalg.set_diag`` of the main diagonal."""
    _main_diagonal(node, "MatrixSetDiagV3", (2, 0))
    x, values, last = node.get_input(0), node.get_input(1), np.int64(-1)
    rows, columns = _size(ops, x, -2), _size(ops, x, -1)
    places = ops.range(np.int64(0), rows, np.int64(1), "i64")
    # Rows below the diagonal take a value that is nowhere used.
    places = ops.minimum(places, ops.subtract(ops.minimum(rows, columns), np.int64(1)))
    wide = ops.unsqueeze(ops.gather(values, places, last), last)
    return list(ops.select(_on_diagonal(ops, rows, columns), wide, x).outputs())


def _update(ops: Any, node: Any) -> list[Any]:
    """A slice that begins where an input says (``keras.ops.slice_update``), as far inside as there is room."""
    x, part, zero = node.get_input(0), node.get_input(1), np.int64(0)
    room = ops.subtract(ops.shape_of(x), ops.shape_of(part))
    begin = ops.maximum(ops.minimum(ops.convert(node.get_input(2), "i64"), room), zero)
    end = ops.subtract(room, begin)

    def padded(value: Any, filler: Any) -> Any:
        return ops.pad(value, begin, end, "constant", filler)

    inside = padded(ops.broadcast(np.int32(1), ops.shape_of(part)), np.int32(0))
    filled = padded(part, ops.convert_like(ops.constant(zero), part))
    return list(ops.select(ops.equal(inside, np.int32(1)), filled, x).outputs())


#: By TensorFlow's name of an operator.
_CONVERSIONS: Mapping[str, Callable[[Any, Any], list[Any]]] = {
    "Bitcast": _bitcast,
    "BitwiseAnd": _and,
    "Cross": _cross,
    "HSVToRGB": _hsv_to_rgb,
    "LRN": _normalize_locally,
    "LogSoftmax": _log_softmax,
    "LowerBound": partial(_search, False),
    "MatrixDiagPartV3": _diagonal_part,
    "MatrixDiagV3": _diagonal_matrix,
    "MatrixSetDiagV3": _with_diagonal,
    "ScatterNd": _scatter,
    "Tile": _tile,
    "UpperBound": partial(_search, True),
    "XlaDynamicUpdateSlice": _update,
}
