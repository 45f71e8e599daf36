"""Sums and extremes by segment, and of sparse matrices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import tensorflow as tf

from modelyard.export.rewrites._replay import Rule

if TYPE_CHECKING:
    from tensorflow.core.framework.node_def_pb2 import NodeDef


def _segments(kind: str, node: NodeDef, inputs: Sequence[tf.Tensor]) -> tf.Tensor:
    """Of unsorted segments: ONNX scatters sums, and compares for the others."""
    values, ids, count = inputs
    count = tf.cast(count, tf.int32)
    rank = ids.shape.rank
    rest = tf.shape(values)[rank:]
    flat = tf.reshape(values, tf.concat([[-1], rest], 0))
    # What is below zero belongs to no segment: to one more, which is cut off.
    ids = tf.reshape(tf.cast(ids, tf.int32), [-1])
    ids = tf.where(ids < 0, count, ids)
    start = tf.fill(tf.concat([[count + 1], rest], 0), _NEUTRAL[kind](values.dtype))
    scatter = {"max": tf.tensor_scatter_nd_max, "min": tf.tensor_scatter_nd_min, "sum": tf.tensor_scatter_nd_add}
    if kind in scatter:
        return scatter[kind](start, ids[:, tf.newaxis], flat)[:-1]
    belongs = tf.equal(ids[tf.newaxis], tf.range(count)[:, tf.newaxis])
    belongs = tf.reshape(belongs, tf.concat([tf.shape(belongs), tf.ones_like(rest)], 0))
    return tf.reduce_prod(tf.where(belongs, flat[tf.newaxis], tf.ones([], values.dtype)), 1)


def _sorted_segments(kind: str, node: NodeDef, inputs: Sequence[tf.Tensor]) -> tf.Tensor:
    values, ids = inputs
    count = ids[-1] + 1
    if kind != "mean":
        found = getattr(tf.math, f"unsorted_segment_{kind}")(values, ids, count)
        if kind in ("sum", "prod"):
            return found
        # TensorFlow has zero where a segment is empty, not the least number.
        return tf.where(_sizes(values, ids, count) > 0, found, tf.zeros_like(found))
    return tf.math.divide_no_nan(tf.math.unsorted_segment_sum(values, ids, count), _sizes(values, ids, count))


def _sizes(values: tf.Tensor, ids: tf.Tensor, count: tf.Tensor) -> tf.Tensor:
    sizes = tf.math.unsorted_segment_sum(tf.ones(tf.shape(ids), values.dtype), ids, count)
    return tf.reshape(sizes, tf.concat([[-1], tf.ones_like(tf.shape(values)[1:])], 0))


def _sparse_segments(kind: str, node: NodeDef, inputs: Sequence[tf.Tensor]) -> tf.Tensor:
    values, indices, ids = inputs[:3]
    return getattr(tf.math, f"segment_{kind}")(tf.gather(values, indices), ids)


def _sparse_matmul(node: NodeDef, inputs: Sequence[tf.Tensor]) -> tf.Tensor:
    indices, values, shape, dense = inputs
    if node.attr["adjoint_a"].b or node.attr["adjoint_b"].b:
        raise ValueError("a transposed sparse matrix has no operator; transpose it before")
    rows = values[:, tf.newaxis] * tf.gather(dense, indices[:, 1])
    return tf.math.unsorted_segment_sum(rows, indices[:, 0], shape[0])


def _bincount(node: NodeDef, inputs: Sequence[tf.Tensor]) -> tf.Tensor:
    values, size, weights = inputs
    kinds = tf.range(size)
    equal = tf.equal(values[..., tf.newaxis], tf.cast(kinds, values.dtype))
    axis = values.shape.rank - 1
    if node.attr["binary_output"].b:
        return tf.cast(tf.reduce_any(equal, axis), weights.dtype)
    if weights.shape.rank == values.shape.rank and weights.shape.num_elements() != 0:
        return tf.reduce_sum(tf.where(equal, weights[..., tf.newaxis], tf.zeros([], weights.dtype)), axis)
    return tf.cast(tf.reduce_sum(tf.cast(equal, tf.int32), axis), weights.dtype)


_NEUTRAL: dict[str, Callable[[tf.Tensor], tf.Tensor]] = {
    "max": lambda dtype: tf.constant(dtype.min, dtype),
    "min": lambda dtype: tf.constant(dtype.max, dtype),
    "prod": lambda dtype: tf.ones([], dtype),
    "sum": lambda dtype: tf.zeros([], dtype),
}
_BOTH = {
    "SparseTensorDenseMatMul": Rule(_sparse_matmul),
    **{f"Segment{kind.title()}": Rule(partial(_sorted_segments, kind)) for kind in ("max", "mean", "min", "prod")},
    **{f"SparseSegment{kind.title()}": Rule(partial(_sparse_segments, kind)) for kind in ("mean", "sum")},
}
TFLITE = {**_BOTH, "DenseBincount": Rule(_bincount)}
ONNX = {
    **_BOTH,
    "SegmentSum": Rule(partial(_sorted_segments, "sum")),
    **{f"UnsortedSegment{kind.title()}": Rule(partial(_segments, kind)) for kind in ("max", "min", "prod", "sum")},
}
