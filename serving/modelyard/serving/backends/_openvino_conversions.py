"""TensorFlow's operators of which OpenVINO's own reader makes something else, in what OpenVINO has."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from modelyard.errors import LoadError


def _log_softmax(node: Any) -> list[Any]:
    """``tf.nn.log_softmax``: OpenVINO (2026.4) leaves out transpositions around its own, which are other axes'."""
    from openvino import opset15 as ops

    last = ops.constant(np.array([-1], np.int64))
    scores = node.get_input(0)
    scores = ops.subtract(scores, ops.reduce_max(scores, last, True))
    total = ops.log(ops.reduce_sum(ops.exp(scores), last, True))
    return list(ops.subtract(scores, total).outputs())


def _normalize_locally(node: Any) -> list[Any]:
    """``tf.nn.local_response_normalization``: OpenVINO's (2026.4) has other windows."""
    from openvino import opset15 as ops

    x = node.get_input(0)
    channels = x.get_partial_shape()[-1]
    if channels.is_dynamic:
        raise LoadError("there is no counterpart for LRN of an unknown number of channels")
    radius, count = node.get_attribute("depth_radius", 5), channels.get_length()
    places = np.arange(count)
    near = (np.abs(places[:, None] - places) <= radius).astype(np.float32) * node.get_attribute("alpha", 1.0)
    sums = ops.add(ops.matmul(ops.multiply(x, x), near, False, False), np.float32(node.get_attribute("bias", 1.0)))
    return list(ops.divide(x, ops.power(sums, np.float32(node.get_attribute("beta", 0.5)))).outputs())


def _scatter(node: Any) -> list[Any]:
    """``tf.scatter_nd``, which adds what has the same place; OpenVINO's own keeps the last (2026.4)."""
    from openvino import opset15 as ops

    places, updates, shape = (node.get_input(index) for index in range(3))
    zero = ops.convert_like(ops.constant(np.int64(0)), updates)
    return list(ops.scatter_nd_update(ops.broadcast(zero, shape), places, updates, "sum").outputs())


def _tile(node: Any) -> list[Any]:
    """``tf.tile``: where OpenVINO (2026.4) moves a transposition past it, other axes are repeated.

    It moves none past a reshape.
    """
    from openvino import opset15 as ops

    def fixed(x: Any) -> Any:
        return ops.reshape(x, ops.shape_of(x), False)

    return list(fixed(ops.tile(fixed(node.get_input(0)), node.get_input(1))).outputs())


#: By TensorFlow's name of an operator.
CONVERSIONS: Mapping[str, Callable[[Any], list[Any]]] = {
    "LRN": _normalize_locally,
    "LogSoftmax": _log_softmax,
    "ScatterNd": _scatter,
    "Tile": _tile,
}
