"""Sums along an axis, searches, and what moves elements."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import tensorflow as tf

from modelyard.export.rewrites._replay import Rule, emit
from modelyard.export.rewrites._values import constant, slices

if TYPE_CHECKING:
    from tensorflow.core.framework.node_def_pb2 import NodeDef


def _scan(
    combine: Callable[[tf.Tensor, tf.Tensor], tf.Tensor], neutral: float, node: NodeDef, inputs: Sequence[tf.Tensor]
) -> tf.Tensor:
    """Results of all beginnings of an axis, each step with twice as many as the last."""
    x, axis = inputs[0], _constant(node, inputs[1])
    rank, length = x.shape.rank, tf.shape(x)[axis]
    axis %= rank
    if node.attr["reverse"].b:
        x = tf.reverse(x, [axis])
    front = tf.one_hot(axis, rank, dtype=tf.int32)
    first, whole = tf.zeros([rank], tf.int32), tf.fill([rank], -1)

    def shifted(values: tf.Tensor, by: tf.Tensor) -> tf.Tensor:
        kept = tf.slice(values, first, whole * (1 - front) + front * tf.maximum(length - by, 0))
        start = tf.fill(tf.shape(values) * (1 - front) + front * tf.minimum(by, length), tf.cast(neutral, x.dtype))
        return tf.concat([start, kept], axis)

    if node.attr["exclusive"].b:
        x = shifted(x, 1)
    if x.shape[axis] is not None:
        for power in range(max(x.shape[axis] - 1, 0).bit_length()):
            x = combine(x, shifted(x, 1 << power))
    else:
        x = tf.while_loop(
            lambda by, _: by < length,
            lambda by, values: (by * 2, tf.ensure_shape(combine(values, shifted(values, by)), x.shape)),
            [tf.constant(1), x],
            shape_invariants=[tf.TensorShape([]), x.shape],
        )[1]
    return tf.reverse(x, [axis]) if node.attr["reverse"].b else x


def _cumulative_log_sum(node: NodeDef, inputs: Sequence[tf.Tensor]) -> tf.Tensor:
    """With a number in place of minus infinity, whose difference with itself is none."""
    least = inputs[0].dtype.min
    total = _scan(_log_add, least, node, [tf.maximum(inputs[0], least), inputs[1]])
    return tf.where(total > least, total, -math.inf)


def _log_add(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    most = tf.maximum(x, y)
    return most + tf.math.log(tf.exp(x - most) + tf.exp(y - most))


def _in_top_k(node: NodeDef, inputs: Sequence[tf.Tensor]) -> tf.Tensor:
    """Whether fewer than k scores are above that of a class."""
    scores, classes, k = inputs
    own = tf.gather(scores, classes, axis=1, batch_dims=1)[:, tf.newaxis]
    above = tf.reduce_sum(tf.cast(scores > own, tf.int32), 1)
    return tf.logical_and(above < tf.cast(k, tf.int32), tf.math.is_finite(own[:, 0]))


def _greedy_paths(node: NodeDef, inputs: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """CTC's best symbol of every step; tf2onnx takes the last symbol for the blank, whichever it is."""
    scores, lengths = inputs
    blank = node.attr["blank_index"].i
    blank += tf.shape(scores)[2] if blank < 0 else 0
    best = tf.transpose(tf.argmax(scores, 2, tf.int32))
    there = tf.range(tf.shape(scores)[0])[tf.newaxis] < lengths[:, tf.newaxis]
    kept = tf.logical_and(there, tf.not_equal(best, blank))
    if node.attr["merge_repeated"].b:
        before = tf.concat([tf.fill([tf.shape(best)[0], 1], -1), best[:, :-1]], 1)
        kept = tf.logical_and(kept, tf.not_equal(best, before))
    counted = tf.cast(kept, tf.int32)
    places, found = tf.cumsum(counted, 1, exclusive=True), tf.where(kept)
    column = tf.cast(tf.gather_nd(places, found), tf.int64)
    longest = tf.reduce_max(tf.concat([tf.reduce_sum(counted, 1), [0]], 0))
    size = tf.cast(tf.stack([tf.shape(best)[0], longest]), tf.int64)
    total = tf.reduce_sum(tf.where(there, tf.transpose(tf.reduce_max(scores, 2)), tf.zeros([], scores.dtype)), 1)
    values = tf.cast(tf.gather_nd(best, found), tf.int64)
    return [tf.stack([found[:, 0], column], 1), values, size, -total[:, tf.newaxis]]


def _bound(upper: bool, node: NodeDef, inputs: Sequence[tf.Tensor]) -> tf.Tensor:
    ordered, values = inputs[0][:, tf.newaxis, :], inputs[1][:, :, tf.newaxis]
    before = ordered <= values if upper else ordered < values
    count = tf.reduce_sum(tf.cast(before, tf.int32), -1)
    return tf.cast(count, tf.as_dtype(node.attr["out_type"].type))


def _roll(node: NodeDef, inputs: Sequence[tf.Tensor]) -> tf.Tensor:
    x, shifts, axes = inputs[0], tf.reshape(inputs[1], [-1]), constant(inputs[2])
    if axes is None:
        raise ValueError("tf.roll along an axis that is no constant")
    for index, axis in enumerate(axes.reshape(-1).tolist()):
        length = tf.shape(x)[axis]
        places = tf.math.floormod(tf.range(length) - tf.cast(shifts[index], tf.int32), length)
        x = tf.gather(x, places, axis=axis)
    return x


def _ragged_rows(node: NodeDef, inputs: Sequence[tf.Tensor]) -> tf.Tensor:
    """Rows of different lengths as rows of one length: each place knows where its value is."""
    shape, values, default = inputs[:3]
    kinds = [each.decode() for each in node.attr["row_partition_types"].list.s]
    if kinds == ["ROW_SPLITS"]:
        splits = tf.cast(inputs[3], tf.int32)
        starts, lengths = splits[:-1], splits[1:] - splits[:-1]
    elif kinds == ["FIRST_DIM_SIZE", "VALUE_ROWIDS"]:
        rows = tf.cast(inputs[4], tf.int32)
        lengths = tf.math.unsorted_segment_sum(tf.ones_like(rows), rows, tf.cast(inputs[3], tf.int32))
        starts = tf.cumsum(lengths, exclusive=True)
    else:
        raise ValueError(f"{node.op} ({node.name}) of rows of rows; pad them before")
    known = constant(shape)
    wide = int(known[1]) if known is not None and known.ndim and known[1] >= 0 else tf.reduce_max(lengths)
    columns = tf.range(wide)[tf.newaxis]
    there = columns < lengths[:, tf.newaxis]
    # One more value, for all places that have none.
    nothing = tf.broadcast_to(default, tf.concat([[1], tf.shape(values)[1:]], 0))
    places = tf.where(there, starts[:, tf.newaxis] + columns, tf.shape(values)[0])
    return tf.gather(tf.concat([values, nothing], 0), places)


def lookup_rules(tables: Mapping[str, tf.lookup.StaticHashTable]) -> dict[str, Rule]:
    """For lookups of numbers: TFLite has tables from strings to int64 and back only."""

    def is_number(attribute: str, node: NodeDef) -> bool:
        return node.attr[attribute].type in _INTEGERS

    def table(node: NodeDef, inputs: Sequence[tf.Tensor]) -> tf.Tensor:
        found = tables[node.attr["shared_name"].s.decode()]
        # The one table from numbers that it has.
        return None if found.value_dtype == tf.string else found

    return {
        "HashTableV2": Rule(table, partial(is_number, "key_dtype"), alone=False),
        "LookupTableFindV2": Rule(_lookup, partial(is_number, "Tin")),
    }


def _lookup(node: NodeDef, inputs: Sequence[tf.Tensor]) -> tf.Tensor:
    """A search in sorted keys, by halves."""
    table, wanted, default = inputs
    if isinstance(table, tf.Tensor):
        return None
    with tf.init_scope():
        keys, values = (each.numpy() for each in table.export())
    order = np.argsort(keys)
    keys, values = tf.constant(keys[order]), tf.constant(values[order])
    last = len(order) - 1
    place = tf.zeros_like(wanted, tf.int32)
    for power in reversed(range(last.bit_length())):
        further = tf.minimum(place + (1 << power), last)
        place = tf.where(tf.gather(keys, further) <= wanted, further, place)
    return tf.where(tf.equal(tf.gather(keys, place), wanted), tf.gather(values, place), default)


def _gather(node: NodeDef, inputs: Sequence[tf.Tensor]) -> tf.Tensor | None:
    """Along an axis that is counted from the front: tf2onnx gives up where another is beside ``batch_dims``."""
    values, indices, axis = inputs[0], inputs[1], constant(inputs[2])
    if axis is None or axis >= 0:
        return None
    return tf.gather(values, indices, axis=int(axis) + values.shape.rank, batch_dims=node.attr["batch_dims"].i)


def _broadcast_shape(node: NodeDef, inputs: Sequence[tf.Tensor]) -> tf.Tensor:
    """The shape of two that are broadcast to one."""
    rank = tf.reduce_max([tf.shape(each)[0] for each in inputs])
    first, second = (tf.concat([tf.ones([rank - tf.shape(each)[0]], each.dtype), each], 0) for each in inputs)
    return tf.where(tf.equal(first, 1), second, first)


def _update_slice(node: NodeDef, inputs: Sequence[tf.Tensor]) -> tf.Tensor:
    """What ``keras.ops.slice_update`` is: a part is replaced, moved inwards where it would go beyond the end."""
    x, part, begin = inputs
    begin = tf.cast(begin, tf.int32)
    room = tf.shape(x) - tf.shape(part)
    begin = tf.maximum(tf.minimum(begin, room), 0)
    edges = tf.stack([begin, room - begin], 1)
    return tf.where(tf.pad(tf.ones_like(part, tf.float32), edges) > 0, tf.pad(part, edges), x)


def _reversed_rows(node: NodeDef, inputs: Sequence[tf.Tensor]) -> tf.Tensor:
    """Along the second axis, of rows in the first: ONNX has no others."""
    x, lengths = inputs
    along, rows = node.attr["seq_dim"].i, node.attr["batch_dim"].i
    order = [rows, along, *(axis for axis in range(x.shape.rank) if axis not in (rows, along))]
    turned = tf.reverse_sequence(tf.transpose(x, order), lengths, seq_axis=1, batch_axis=0)
    return tf.transpose(turned, np.argsort(order))


def _split_rest(node: NodeDef, inputs: Sequence[tf.Tensor]) -> list[tf.Tensor] | None:
    """Parts of which one has what the others leave: tf2onnx hands the -1 on where it does not know the size."""
    x, sizes, axis = inputs[0], constant(inputs[1]), constant(inputs[2])
    if sizes is None or axis is None or -1 not in sizes or x.shape.rank is None:
        return None
    place = int(axis) % x.shape.rank
    length = tf.shape(x)[place] if x.shape[place] is None else x.shape[place]
    rest = length - (int(sizes.sum()) + 1)
    return slices(x, place, [rest if each == -1 else int(each) for each in sizes])


def _scatter(node: NodeDef, inputs: Sequence[tf.Tensor]) -> tf.Tensor:
    """tf2onnx lets the last of equal indices win, where TensorFlow adds."""
    indices, updates, shape = inputs
    return tf.tensor_scatter_nd_add(tf.zeros(shape, updates.dtype), indices, updates)


def _strided_slice(node: NodeDef, inputs: Sequence[tf.Tensor]) -> tf.Tensor:
    """New axes by a reshape: TFLite's slices have five axes at most, the new ones too."""
    x, *bounds = inputs
    new, ellipsis = node.attr["new_axis_mask"].i, node.attr["ellipsis_mask"].i
    count = bounds[0].shape[0]
    if not new or count is None or x.shape.rank is None:
        return None
    kept = [i for i in range(count) if not new >> i & 1 or ellipsis >> i & 1]
    masks = {name: node.attr[name].i for name in _MASKS}
    other = type(node).FromString(node.SerializeToString())
    for name, mask in masks.items():
        other.attr[name].i = sum(1 << place for place, i in enumerate(kept) if mask >> i & 1)
    other.attr["new_axis_mask"].i = 0
    result = emit(other, [x, *(tf.gather(each, kept) for each in bounds)]).outputs[0] if kept else x
    used = len([i for i in kept if not ellipsis >> i & 1])
    place = 0
    for i in range(count):
        if ellipsis >> i & 1:
            place += x.shape.rank - used
        elif new >> i & 1:
            result = tf.expand_dims(result, place)
            place += 1
        elif not masks["shrink_axis_mask"] >> i & 1:
            place += 1
    return result


def _is_vectorized(node: NodeDef) -> bool:
    """Whether ``tf.vectorized_map`` made a node, of another."""
    return "/pfor/" in node.name


def _transpose(node: NodeDef, inputs: Sequence[tf.Tensor]) -> tf.Tensor:
    """By places, where the order of the axes is computed: ``tf.vectorized_map`` chooses it by a size."""
    x, order = inputs
    if constant(order) is not None:
        return None
    shape = tf.shape(x)
    steps = tf.math.cumprod(shape, exclusive=True, reverse=True)
    places = tf.zeros([1] * x.shape.rank, tf.int32)
    for axis in range(x.shape.rank):
        along = tf.range(shape[order[axis]]) * steps[order[axis]]
        places += tf.reshape(along, [-1 if i == axis else 1 for i in range(x.shape.rank)])
    return tf.gather(tf.reshape(x, [-1]), places)


def _squeeze(node: NodeDef, inputs: Sequence[tf.Tensor]) -> tf.Tensor:
    """By a reshape: TFLite's converter drops one of sizes that it does not know."""
    (x,) = inputs
    dropped = {axis % x.shape.rank for axis in node.attr["squeeze_dims"].list.i}
    return tf.reshape(x, [tf.shape(x)[i] for i in range(x.shape.rank) if i not in dropped]) if dropped else None


def _reshape(node: NodeDef, inputs: Sequence[tf.Tensor]) -> tf.Tensor:
    """To the sizes that are known: TFLite's converter forgets them after tf.repeat, and cannot know some."""
    x, shape = inputs
    if constant(shape) is not None:
        return None
    known = tf.reshape(x, shape).shape
    if known.rank is None:
        return None
    sizes = known.as_list()
    if sizes.count(None) == 2 and x.shape.rank and x.shape.as_list().count(None) == 1 and _keeps_batch(x, shape):
        # [batch, -1, 6], as detectors write: the batch is the same, so that the other one follows.
        sizes[1 + sizes[1:].index(None)] = math.prod(x.shape[1:]) // math.prod(n for n in sizes if n is not None)
    elif x.op.type != "Tile" and sizes.count(None) > 1:
        # The converter follows sizes that are gathered, as Dense does it for sequences, and not those taken one by one.
        return None
    return tf.reshape(x, [shape[i] if n is None else n for i, n in enumerate(sizes)])


def _keeps_batch(x: tf.Tensor, shape: tf.Tensor) -> bool:
    """Whether a shape begins with the size of a tensor's first axis, and leaves one to be worked out."""
    if x.shape[0] is not None or shape.op.type != "Pack":
        return False
    first, *others = shape.op.inputs
    begin = first.op.type == "StridedSlice" and first.op.inputs[0].op.type == "Shape" and constant(first.op.inputs[1])
    taken = begin is not False and begin is not None and not begin.any()
    return taken and first.op.inputs[0].op.inputs[0] is x and any(constant(each) == -1 for each in others)


def _ensured(node: NodeDef, inputs: Sequence[tf.Tensor]) -> tf.Tensor:
    """The same tensor, of the known sizes."""
    x, known = inputs[0], tf.TensorShape(node.attr["shape"].shape)
    if known.rank is None:
        return x
    return tf.reshape(x, [tf.shape(x)[i] if size is None else size for i, size in enumerate(known)])


def _constant(node: NodeDef, tensor: tf.Tensor) -> int:
    value = constant(tensor)
    if value is None:
        raise ValueError(f"the axis of {node.op} ({node.name}) is no constant")
    return int(value)


_INTEGERS = frozenset(each.as_datatype_enum for each in (tf.int32, tf.int64))
_MASKS = ("begin_mask", "end_mask", "shrink_axis_mask", "ellipsis_mask")
_BOTH = {
    "CTCGreedyDecoder": Rule(_greedy_paths),
    "CumulativeLogsumexp": Rule(_cumulative_log_sum),
    "Cumprod": Rule(partial(_scan, tf.multiply, 1.0)),
    "InTopKV2": Rule(_in_top_k),
    "RaggedTensorToTensor": Rule(_ragged_rows),
    "LowerBound": Rule(partial(_bound, False)),
    "Transpose": Rule(_transpose, _is_vectorized),
    "UpperBound": Rule(partial(_bound, True)),
}
TFLITE = {
    **_BOTH,
    "EnsureShape": Rule(_ensured),
    # Keras makes UpSampling2D of tf.repeat, which is a Tile and a Reshape.
    "Reshape": Rule(_reshape, alone=False),
    "Roll": Rule(_roll),
    "Squeeze": Rule(_squeeze, _is_vectorized),
    "StridedSlice": Rule(_strided_slice, lambda node: node.attr["new_axis_mask"].i != 0),
    "Tile": Rule(lambda node, inputs: None),
}
ONNX = {
    **_BOTH,
    "BroadcastArgs": Rule(_broadcast_shape),
    "GatherV2": Rule(_gather, lambda node: node.attr["batch_dims"].i != 0),
    "ReverseSequence": Rule(_reversed_rows, lambda node: max(node.attr["seq_dim"].i, node.attr["batch_dim"].i) > 1),
    "ScatterNd": Rule(_scatter),
    "SplitV": Rule(_split_rest),
    "XlaDynamicUpdateSlice": Rule(_update_slice),
}
