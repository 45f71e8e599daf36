"""Small matrices: what neither ONNX nor TFLite has operators for, written out for sizes that are constants."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import tensorflow as tf

from modelyard.export.rewrites._integers import computed_as, has_dtype
from modelyard.export.rewrites._replay import Rule
from modelyard.export.rewrites._values import constant

if TYPE_CHECKING:
    from tensorflow.core.framework.node_def_pb2 import NodeDef

#: Rows from which it would be thousands of operators.
_LARGEST = 32


def _eliminate(matrix: tf.Tensor, sides: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Gauss-Jordan elimination with partial pivoting: the solution ``[..., n, k]``, pivots ``[..., n]``, row sign."""
    size = matrix.shape[-1]
    joined = tf.concat([matrix, sides], -1)
    pivots, sign = [], tf.ones_like(matrix[..., 0, 0])
    for k in range(size):
        column = tf.abs(joined[..., k])
        left = tf.constant([float(i >= k) for i in range(size)], matrix.dtype)
        place = tf.argmax(tf.where(left > 0, column, -tf.ones_like(column)), -1, output_type=tf.int32)
        here, there = tf.one_hot(k, size, dtype=matrix.dtype), tf.one_hot(place, size, dtype=matrix.dtype)
        best = tf.reduce_sum(joined * there[..., tf.newaxis], -2, keepdims=True)
        # The best row takes this place, and the row of this place takes its.
        other = joined[..., k : k + 1, :]
        moved = joined + there[..., tf.newaxis] * (other - best)
        pivot = best[..., k : k + 1]
        row = best / pivot
        factors = moved[..., k : k + 1]
        joined = tf.where(here[:, tf.newaxis] > 0, row, moved - factors * row)
        pivots.append(tf.squeeze(pivot, [-2, -1]))
        sign = tf.where(tf.equal(place, k), sign, -sign)
    return joined[..., size:], tf.stack(pivots, -1), sign


def _checked(node: NodeDef, matrix: tf.Tensor) -> tf.Tensor:
    size = matrix.shape[-1]
    if size is None or size > _LARGEST:
        raise ValueError(
            f"{node.op} ({node.name}) of matrices of {size or 'unknown'} rows; up to {_LARGEST} are written out"
        )
    adjoint = node.attr["adjoint"].b if "adjoint" in node.attr else False
    return tf.linalg.matrix_transpose(matrix) if adjoint else matrix


def _inverse(node: NodeDef, inputs: Sequence[tf.Tensor]) -> tf.Tensor:
    matrix = _checked(node, inputs[0])
    return _eliminate(matrix, tf.zeros_like(matrix) + tf.constant(_eye(matrix.shape[-1]), matrix.dtype))[0]


def _eye(size: int) -> list[list[float]]:
    return [[float(i == j) for j in range(size)] for i in range(size)]


def _solve(node: NodeDef, inputs: Sequence[tf.Tensor]) -> tf.Tensor:
    return _eliminate(_checked(node, inputs[0]), inputs[1])[0]


def _triangular(node: NodeDef, inputs: Sequence[tf.Tensor]) -> tf.Tensor:
    matrix, sides = inputs
    lower = node.attr["lower"].b
    size = matrix.shape[-1] or 0
    # TensorFlow reads one half of the matrix only.
    mask = [[float(j <= i if lower else j >= i) for j in range(size)] for i in range(size)]
    half = tf.where(tf.constant(mask, matrix.dtype) > 0, matrix, tf.zeros_like(matrix))
    return _eliminate(_checked(node, half), sides)[0]


def _determinant(node: NodeDef, inputs: Sequence[tf.Tensor]) -> tf.Tensor:
    matrix = _checked(node, inputs[0])
    _, pivots, sign = _eliminate(matrix, matrix[..., :0])
    return tf.where(_is_singular(pivots), tf.zeros_like(sign), sign * tf.reduce_prod(pivots, -1))


def _log_determinant(node: NodeDef, inputs: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    matrix = _checked(node, inputs[0])
    _, pivots, sign = _eliminate(matrix, matrix[..., :0])
    singular = _is_singular(pivots)
    logarithm = tf.where(singular, -math.inf, tf.reduce_sum(tf.math.log(tf.abs(pivots)), -1))
    return [tf.where(singular, tf.zeros_like(sign), sign * tf.reduce_prod(tf.sign(pivots), -1)), logarithm]


def _is_singular(pivots: tf.Tensor) -> tf.Tensor:
    """Whether a pivot is zero; those after it are NaN."""
    return tf.reduce_any(tf.equal(pivots, 0.0), -1)


def _cholesky(node: NodeDef, inputs: Sequence[tf.Tensor]) -> tf.Tensor:
    rest = _checked(node, inputs[0])
    columns = []
    for k in range(rest.shape[-1]):
        column = rest[..., k] / tf.sqrt(rest[..., k, k, tf.newaxis])
        below = tf.constant([float(i >= k) for i in range(rest.shape[-1])], rest.dtype)
        column = column * below
        columns.append(column)
        rest = rest - column[..., :, tf.newaxis] * column[..., tf.newaxis, :]
    return tf.stack(columns, -1)


def _main_diagonal(matrix: tf.Tensor) -> tf.Tensor:
    rows, columns = tf.shape(matrix)[-2], tf.shape(matrix)[-1]
    return tf.equal(tf.range(rows)[:, tf.newaxis], tf.range(columns))


def _cross(node: NodeDef, inputs: Sequence[tf.Tensor]) -> tf.Tensor:
    x, y = inputs
    return tf.roll(x, -1, -1) * tf.roll(y, -2, -1) - tf.roll(x, -2, -1) * tf.roll(y, -1, -1)


def _diagonal(node: NodeDef, inputs: Sequence[tf.Tensor]) -> tf.Tensor:
    matrix, which = inputs[0], constant(inputs[1])
    if which is None or which.size > 1:
        raise ValueError(f"{node.op} ({node.name}) of several diagonals")
    above = int(which)
    matrix = matrix[..., max(-above, 0) :, max(above, 0) :] if above else matrix
    least = tf.minimum(tf.shape(matrix)[-2], tf.shape(matrix)[-1])
    found = tf.reduce_sum(tf.where(_main_diagonal(matrix), matrix, tf.zeros([], matrix.dtype)), -1)
    return found if matrix.shape[-1] == matrix.shape[-2] else found[..., :least]


def _diagonal_matrix(node: NodeDef, inputs: Sequence[tf.Tensor]) -> tf.Tensor:
    """tf2onnx drops the first axis of a batch of one."""
    diagonal, *form = inputs[0], *(constant(each) for each in inputs[1:5])
    if any(each is None or each.size > 1 for each in form) or [int(each) for each in form[1:3]] != [-1, -1]:
        return None
    above, rest = int(form[0]), form[3].item()
    places = tf.range(tf.shape(diagonal)[-1])
    there = tf.equal(places[:, tf.newaxis], places)
    square = tf.where(there, diagonal[..., tf.newaxis], tf.constant(rest, diagonal.dtype))
    low, high = max(-above, 0), max(above, 0)
    edges = [[0, 0]] * (square.shape.rank - 2) + [[low, high], [high, low]]
    return tf.pad(square, edges, constant_values=rest) if above else square


_BOTH = {
    "Cholesky": Rule(_cholesky),
    "Cross": Rule(_cross),
    "LogMatrixDeterminant": Rule(_log_determinant),
    "MatrixInverse": Rule(_inverse),
    "MatrixSolve": Rule(_solve),
    "MatrixTriangularSolve": Rule(_triangular),
}
#: Each has what the other lacks.
ONNX = {
    **_BOTH,
    "MatrixDiagV3": Rule(_diagonal_matrix),
    # What tf.eye is of bool, for which onnxruntime has no identity.
    "MatrixSetDiagV3": Rule(lambda node, inputs: computed_as(node, inputs, tf.float32), has_dtype(tf.bool)),
}
TFLITE = {**_BOTH, "MatrixDeterminant": Rule(_determinant), "MatrixDiagPartV3": Rule(_diagonal)}
