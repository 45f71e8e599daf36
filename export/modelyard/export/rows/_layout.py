"""How operations that change shapes, and move or repeat elements, carry the rows of a batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import tensorflow as tf

from modelyard.export.rows._values import (
    Mixed,
    Rule,
    Undecided,
    Value,
    constant,
    marks_of,
    only_first,
    rank,
    rows,
    sizes,
    static_input,
)


def _shape(op: tf.Operation, values: Sequence[Value]) -> Value:
    (value,) = values
    if value.kind == "constant":
        return constant()
    if value.kind != "rows":
        raise Undecided("the shape of something that has no rows")
    return sizes(index == value.axis for index in range(rank(value)))


def _size(op: tf.Operation, values: Sequence[Value]) -> Value:
    return sizes((values[0].kind == "rows",))


def _reshape(op: tf.Operation, values: Sequence[Value]) -> Value:
    value, target = values
    if value.kind == "sizes" and value.marks is not None and len(value.marks) == 1:
        return value
    marks = marks_of(target)
    numbers = tf.get_static_value(op.inputs[1], partial=True)
    known = [None] * len(marks) if numbers is None else [None if n is None else int(n) for n in numbers]
    if value.kind == "constant":
        raise Undecided("a constant in the shape of the batch")
    if value.kind != "rows" or value.axis != 0 or not marks:
        raise Undecided("a reshape of something whose rows are not first")
    # Rows lie one after the other in memory, and any shape keeps that. Each index along the first axis belongs to one
    # of them where all other sizes hold for a batch of one row, too: they do not grow with the rows.
    first, *others = known
    if any(marks[1:]) or not (marks[0] or first == -1) or (first == -1 and -1 in others):
        raise Undecided("a reshape that may cut rows apart")
    return rows(0)


def _transpose(op: tf.Operation, values: Sequence[Value]) -> Value:
    value = only_first(values)
    order = [axis % rank(value) for axis in static_input(op, 1)]
    return rows(order.index(value.axis))


def _expand(op: tf.Operation, values: Sequence[Value]) -> Value:
    if values[0].kind == "sizes":
        return values[0]
    value = only_first(values)
    axis = static_input(op, 1)[0] % (rank(value) + 1)
    return rows(value.axis + (axis <= value.axis))


def _squeeze(op: tf.Operation, values: Sequence[Value]) -> Value:
    if values[0].kind == "sizes":
        return values[0]
    value = only_first(values)
    axes = {axis % rank(value) for axis in op.get_attr("squeeze_dims")}
    if not axes or value.axis in axes:
        raise Undecided("drops every dimension of one")
    return rows(value.axis - sum(axis < value.axis for axis in axes))


def _pack(op: tf.Operation, values: Sequence[Value]) -> Value:
    if all(each.kind in ("constant", "sizes") for each in values):
        return sizes(mark for each in values for mark in marks_of(each))
    if len({(each.kind, each.axis) for each in values}) > 1 or values[0].kind != "rows":
        raise Undecided("puts rows and something else together")
    axis = op.get_attr("axis") % (rank(values[0]) + 1)
    return rows(values[0].axis + (axis <= values[0].axis))


def _unpack(op: tf.Operation, values: Sequence[Value]) -> Value | list[Value]:
    if values[0].kind == "sizes":
        return [sizes((mark,)) for mark in marks_of(values[0])]
    value = only_first(values)
    axis = op.get_attr("axis") % rank(value)
    if axis == value.axis:
        raise Mixed("takes the rows apart")
    return rows(value.axis - (axis < value.axis))


def _concat(op: tf.Operation, values: Sequence[Value]) -> Value:
    *parts, _ = values
    if all(each.kind in ("constant", "sizes") for each in parts):
        return sizes(mark for each in parts for mark in marks_of(each))
    if len({(each.kind, each.axis) for each in parts}) > 1 or parts[0].kind != "rows":
        raise Undecided("puts rows and something else together")
    if static_input(op, len(parts))[0] % rank(parts[0]) == parts[0].axis:
        raise Undecided("puts batches one after the other")
    return rows(parts[0].axis)


def _split(op: tf.Operation, values: Sequence[Value]) -> Value:
    at, by = (1, 0) if op.type == "Split" else (0, 2)
    value = only_first(values, at)
    if static_input(op, by)[0] % rank(value) == value.axis:
        raise Mixed("takes the rows apart")
    return rows(value.axis)


def _slice(op: tf.Operation, values: Sequence[Value]) -> Value:
    if values[0].kind == "sizes":
        begin, size = static_input(op, 1)[0], static_input(op, 2)[0]
        return sizes(marks_of(values[0])[begin : None if size < 0 else begin + size])
    value = only_first(values)
    if static_input(op, 1)[value.axis] != 0 or static_input(op, 2)[value.axis] != -1:
        raise Undecided("takes some of the rows")
    return rows(value.axis)


def _strided_slice(op: tf.Operation, values: Sequence[Value]) -> Value:
    begins, ends, strides = (static_input(op, index) for index in (1, 2, 3))
    if values[0].kind == "sizes":
        marks = marks_of(values[0])
        if op.get_attr("shrink_axis_mask") & 1:
            return sizes((marks[begins[0]],))
        begin = None if op.get_attr("begin_mask") & 1 else begins[0]
        end = None if op.get_attr("end_mask") & 1 else ends[0]
        return sizes(marks[begin : end : strides[0]])
    value = only_first(values)
    masks = {name: op.get_attr(f"{name}_mask") for name in ("begin", "end", "ellipsis", "new_axis", "shrink_axis")}
    consumed = sum(not (masks["new_axis"] | masks["ellipsis"]) >> index & 1 for index in range(len(begins)))
    axis = place = 0
    for index in range(len(begins)):
        bit = 1 << index
        if masks["ellipsis"] & bit:
            width = rank(value) - consumed
            if axis <= value.axis < axis + width:
                return rows(place + value.axis - axis)
            axis, place = axis + width, place + width
        elif masks["new_axis"] & bit:
            place += 1
        elif axis == value.axis:
            whole = masks["begin"] & bit and masks["end"] & bit and strides[index] == 1
            if masks["shrink_axis"] & bit or not whole:
                raise Undecided("takes some of the rows")
            return rows(place)
        else:
            axis, place = axis + 1, place + (not masks["shrink_axis"] & bit)
    return rows(place + value.axis - axis)


def _pad(op: tf.Operation, values: Sequence[Value]) -> Value:
    value = only_first(values)
    if any(static_input(op, 1)[2 * value.axis : 2 * value.axis + 2]):
        raise Mixed("adds rows")
    return rows(value.axis)


def _tile(op: tf.Operation, values: Sequence[Value]) -> Value:
    value, times = values
    if value.kind == "rows" and times.kind == "constant":
        if static_input(op, 1)[value.axis] != 1:
            raise Mixed("repeats the rows")
        return rows(value.axis)
    if value.kind == "constant":
        return _filled(marks_of(times), value)
    raise Undecided("repeats something by the number of rows")


def _broadcast(op: tf.Operation, values: Sequence[Value]) -> Value:
    value, target = values
    marks = marks_of(target)
    if value.kind == "constant":
        return _filled(marks, value)
    axis = len(marks) - rank(value) + value.axis
    if value.kind != "rows" or [index for index, mark in enumerate(marks) if mark] != [axis]:
        raise Undecided("broadcasts something that has no rows")
    return rows(axis)


def _fill(op: tf.Operation, values: Sequence[Value]) -> Value:
    target, value = values
    if value.kind != "constant":
        raise Undecided("fills with something computed")
    return _filled(marks_of(target), value)


def _filled(marks: Sequence[bool], value: Value) -> Value:
    """A constant repeated for every row."""
    grown = [index for index, mark in enumerate(marks) if mark]
    if len(grown) != 1:
        raise Undecided("a shape that grows twice with the rows")
    place = len(marks) - grown[0]
    if rank(value) >= place and value.dims is not None and value.dims[-place] != 1:
        raise Undecided("repeats something by the number of rows")
    return rows(grown[0])


LAYOUT_RULES: Mapping[str, Rule] = {
    "BroadcastTo": _broadcast, "ConcatV2": _concat, "ExpandDims": _expand, "Fill": _fill, "MirrorPad": _pad, "Pack":
    _pack, "Pad": _pad, "PadV2": _pad, "Reshape": _reshape, "Shape": _shape, "Size": _size, "Slice": _slice, "Split":
    _split, "SplitV": _split, "Squeeze": _squeeze, "StridedSlice": _strided_slice, "Tile": _tile, "Transpose":
    _transpose, "Unpack": _unpack,
}  # fmt: skip
