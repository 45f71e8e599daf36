"""``tf.TensorArray`` in loops: TFLite's converter knows it only where the batch size is fixed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import tensorflow as tf

from modelyard.export.rewrites._replay import Rule
from modelyard.export.rewrites._values import TensorList, filled

if TYPE_CHECKING:
    from tensorflow.core.framework.node_def_pb2 import NodeDef


def _reserve(node: NodeDef, inputs: Sequence[tf.Tensor]) -> TensorList:
    shape, length = inputs
    dtype = tf.as_dtype(node.attr["element_dtype"].type)
    static = tf.get_static_value(shape)
    if static is None or static.ndim == 0 or (static < 0).any():
        return TensorList(None, length, dtype)
    return filled(length, shape, static.tolist(), dtype)


def _set(node: NodeDef, inputs: Sequence[tf.Tensor]) -> TensorList:
    known, index, item = inputs
    if known.items is None:
        known = filled(known.length, tf.shape(item), item.shape, known.dtype)
    # Not by x[i:]: at the end of a list, LiteRT 2.3 gave the last element for it in loops, where it is nothing.
    first, whole = [0] * item.shape.rank, [-1] * item.shape.rank
    rest = tf.minimum(index + 1, tf.shape(known.items)[0])
    before = tf.slice(known.items, [0, *first], tf.stack([index, *whole]))
    items = tf.concat([before, item[tf.newaxis], tf.slice(known.items, tf.stack([rest, *first]), [-1, *whole])], 0)
    items.set_shape(tf.TensorShape([None]).concatenate(item.shape))
    length = known.length
    if node.attr["resize_if_index_out_of_bounds"].b:
        length = tf.maximum(length, index + 1)
    return TensorList(items, length, known.dtype)


def _get(node: NodeDef, inputs: Sequence[tf.Tensor]) -> tf.Tensor:
    return tf.gather(_items(inputs[0]), inputs[1])


def _stack(node: NodeDef, inputs: Sequence[tf.Tensor]) -> tf.Tensor:
    items, count = _items(inputs[0]), node.attr["num_elements"].i
    if count <= 0:
        return items
    # A converter knows only what operators say: a reshape says how many there are.
    known = [count, *items.shape[1:].as_list()]
    actual = tf.shape(items)
    return tf.reshape(items, [actual[i] if size is None else size for i, size in enumerate(known)])


def _from_tensor(node: NodeDef, inputs: Sequence[tf.Tensor]) -> TensorList:
    return TensorList(inputs[0], tf.shape(inputs[0])[0], inputs[0].dtype)


def _length(node: NodeDef, inputs: Sequence[tf.Tensor]) -> tf.Tensor:
    return inputs[0].length


def _items(known: TensorList) -> tf.Tensor:
    if known.items is None:
        raise ValueError("a tf.TensorArray is read before anything was written")
    return known.items


RULES = {
    "TensorListFromTensor": Rule(_from_tensor, alone=False),
    "TensorListGather": Rule(_get, alone=False),
    "TensorListGetItem": Rule(_get, alone=False),
    "TensorListLength": Rule(_length, alone=False),
    "TensorListReserve": Rule(_reserve),
    "TensorListSetItem": Rule(_set, alone=False),
    "TensorListStack": Rule(_stack, alone=False),
}
