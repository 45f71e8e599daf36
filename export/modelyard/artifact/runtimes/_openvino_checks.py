"""OpenVINO graphs without what its CPU plugin (2026.4) answers otherwise than ONNX and TensorFlow, or does not survive.

An index out of range reads or writes other memory, or ends the process. Only a Gather answers it with zeros, as
TensorFlow does on a GPU, unless it is one of a few integers; ``lookup_sizes`` is for the others.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import numpy as np

_LOCK = threading.Lock()


def prepare_openvino(model: Any) -> None:
    """Changes a graph, and those inside of it, so that it answers as ONNX and TensorFlow do, or with an error.

    Equal values stay in their order where the largest are chosen, and values in theirs where those that are equal are
    dropped. An index out of range is an error, and so is an integer divided by zero.
    """
    with _LOCK:
        _manager().run_passes(model)


@cache
def _manager() -> Any:
    """Made once: OpenVINO keeps what was made for one."""
    from openvino import opset15 as ops
    from openvino.passes import Manager

    manager = Manager()
    for pattern, change in _CHANGES:
        manager.register_pass(_rule(pattern, partial(change, ops)))
    return manager


def _rule(pattern: list[str], change: Callable[[Any], bool]) -> Any:
    from openvino.passes import Matcher, MatcherPass, WrapType

    class Rule(MatcherPass):  # type: ignore[misc]  # its bindings have no types
        def __init__(self) -> None:
            super().__init__()
            self.register_matcher(Matcher(WrapType(pattern), pattern[0]), self._change)

        def _change(self, matcher: Any) -> bool:
            return change(matcher.get_match_root())

    return Rule()


def _keep_order(ops: Any, node: Any) -> bool:
    node.set_attribute("stable", True)
    return True


def _pass_on(ops: Any, node: Any) -> bool:
    """Drops a conversion to the same type, and one to and fro between types that the plugin computes as one.

    It does so itself, and where nothing else is between an input and an output, that then shares the memory of an
    earlier call's input.
    """
    source, kind = node.input_value(0), node.get_element_type()
    before = source.get_node()
    if source.get_element_type() != kind and before.get_type_name() == "Convert":
        source = before.input_value(0)
        if before.get_element_type().get_type_name() not in _SAME.get(kind.get_type_name(), ()):
            return False
    if source.get_element_type() != kind:
        return False
    node.output(0).replace(source)
    return True


def _wrap(ops: Any, node: Any) -> bool:
    """Of integers, what 16 bits hold: the plugin converts to 32."""
    source, kind = node.input_value(0), node.get_element_type().get_type_name()
    given = source.get_element_type()
    if kind not in ("i16", "u16") or not given.is_integral_number() or given.size <= 2:
        return False
    all_, sign = (ops.constant(np.array(each, given.to_dtype())) for each in (2**16 - 1, 2**15))
    kept = ops.bitwise_and(source, all_)
    if kind == "i16":
        kept = ops.subtract(ops.bitwise_xor(kept, sign), sign)
    node.input(0).replace_source_output(kept.output(0))
    return True


def _check_elements(ops: Any, node: Any, *, from_end: bool) -> bool:
    """Of what is written along one axis, the last input."""
    if _is_constant(node):
        return False
    size = ops.gather(ops.shape_of(node.input_value(0)), ops.convert(node.input_value(3), "i64"), _constant(ops, 0))
    return _check_index(ops, node, ops.negative(size) if from_end else _constant(ops, 0), size)


def _check_places(ops: Any, node: Any) -> bool:
    """Of GatherND: an index has a number for each of some axes, behind those of the batch."""
    axes = ops.gather(ops.shape_of(node.input_value(1)), _constant(ops, [-1]), _constant(ops, 0))
    begin = _constant(ops, [node.get_attributes()["batch_dims"]])
    sizes = ops.slice(ops.shape_of(node.input_value(0)), begin, ops.add(begin, axes), _constant(ops, [1]))
    return _check_index(ops, node, ops.negative(sizes), sizes)


def _check_gather(ops: Any, node: Any) -> bool:
    """Of one row of integers: up to 64 of them, as sizes are, have code of their own that reads wherever it is told."""
    row = node.input_value(0)
    rank = row.get_partial_shape().rank
    if _are_sizes(node, 1) or row.get_element_type().is_real() or rank.is_dynamic or rank.get_length() != 1:
        return False
    size = ops.shape_of(row)
    return _check_index(ops, node, ops.negative(size), size)


def _check_not_negative(ops: Any, node: Any) -> bool:
    """Of segments of SegmentMax, lengths of CTCGreedyDecoderSeqLen and repeats of Tile, which may be large."""
    return not _are_sizes(node, 1) and _check_index(ops, node, _constant(ops, 0), _constant(ops, 1 << 62))


def _check_pads(ops: Any, node: Any) -> bool:
    """Of Pad, which takes from the sides what is less than zero: no more than there is."""
    if _are_sizes(node, 1, 2):
        return False
    size, zero = ops.shape_of(node.input_value(0)), _constant(ops, 0)
    # Sums of 32 bits hold one more than there is, twice.
    least = ops.subtract(_constant(ops, -1), size)
    taken = [ops.minimum(ops.maximum(ops.convert(node.input_value(number), "i64"), least), zero) for number in (1, 2)]
    return _fail_where(ops, node, ops.less(ops.add(size, ops.add(*taken)), zero))


def _check_range(ops: Any, node: Any) -> bool:
    """Of numbers from begin to end: none where the end comes first, and of integers a step that is not zero."""
    if _are_sizes(node, 0, 1, 2):
        return False
    element = node.input_value(0).get_element_type()
    kind = element.get_type_name() if element.is_real() else "i64"
    begin, end, step = (ops.convert(each, kind) for each in node.input_values())
    zero, one = (ops.convert(_constant(ops, each), kind) for each in (0, 1))
    if node.input_value(2).get_node().get_type_name() == "Constant":
        limit = ops.maximum if node.input_value(2).get_node().get_data() > 0 else ops.minimum
        node.input(1).replace_source_output(limit(end, begin).output(0))
        node.input(0).replace_source_output(begin.output(0))
        return True
    up = ops.greater(step, zero)
    end = ops.select(up, ops.maximum(end, begin), ops.minimum(end, begin))
    # A step that is larger than the range is as good as the range, and does not overflow.
    span = ops.subtract(end, begin)
    most, least = ops.maximum(span, one), ops.minimum(span, ops.negative(one))
    limited = ops.select(up, ops.minimum(step, most), ops.maximum(step, least))
    for number, value in enumerate((begin, end, step if element.is_real() else limited)):
        node.input(number).replace_source_output(value.output(0))
    return element.is_real() or _fail_where(ops, node, ops.equal(step, zero))


def _check_boxes(ops: Any, node: Any) -> bool:
    """Of ROIPooling: the image of a box, and its corners, which may be outside of the image but must be somewhere."""
    boxes = node.input_value(1)
    count = ops.gather(ops.shape_of(node.input_value(0)), _constant(ops, 0), _constant(ops, 0))
    image = ops.convert(ops.gather(boxes, _constant(ops, [0]), _constant(ops, 1)), "i64")
    outside = _outside(ops, image, _constant(ops, 0), count)
    return _fail_where(ops, node, ops.logical_or(outside, ops.logical_not(ops.is_finite(boxes))))


def _check_slice(ops: Any, node: Any) -> bool:
    """Of a slice that drops axes by a computed index, which OpenVINO takes for the last one."""
    masks = node.get_attributes()
    dropped = np.flatnonzero(masks["shrink_axis_mask"])
    if _is_constant(node) or not dropped.size or any(masks["ellipsis_mask"]) or any(masks["new_axis_mask"]):
        return False
    axes = _constant(ops, dropped.tolist())
    size = ops.gather(ops.shape_of(node.input_value(0)), axes, _constant(ops, 0))
    index = ops.convert(ops.gather(node.input_value(1), axes, _constant(ops, 0)), "i64")
    return _fail_where(ops, node, _outside(ops, index, ops.negative(size), size))


def _check_step(ops: Any, node: Any) -> bool:
    """Of StridedSlice and Slice: zero divides the distance, and the least integer has no opposite."""
    if _are_sizes(node, 3):
        return False
    step = node.input_value(3)
    zero, least = (ops.convert_like(_constant(ops, each), step) for each in (0, -(2**31) + 1))
    node.input(3).replace_source_output(ops.maximum(step, least).output(0))
    return _fail_where(ops, node, ops.equal(step, zero))


def _check_divisor(ops: Any, node: Any) -> bool:
    divisor = node.input_value(1)
    if _is_constant(node) or divisor.get_element_type().is_real():
        return False
    return _fail_where(ops, node, ops.equal(divisor, ops.convert_like(_constant(ops, 0), divisor)))


def _clamp_shift(ops: Any, node: Any) -> bool:
    """As TensorFlow has it: shifts are from 0 to one less than there are bits."""
    if _is_constant(node):
        return False
    bits = node.get_input_element_type(0).size * 8
    node.input(1).replace_source_output(ops.clamp(node.input_value(1), 0, bits - 1).output(0))
    return True


def _first_of_each(ops: Any, node: Any) -> bool:
    """Of Unique in the order that values come in, which has zeros for all but the first: by that in their own order."""
    from openvino.utils import replace_node

    if node.get_attributes()["sorted"] or len(node.inputs()) > 1:
        return False
    found = ops.unique(node.input_value(0), sorted=True, index_element_type="i64", count_element_type="i64")
    values, first, places, counts = found.outputs()
    size, axis = ops.gather(ops.shape_of(first), _constant(ops, 0), _constant(ops, 0)), _constant(ops, 0)
    # Places are few enough for float32, which they would be compared in anyhow.
    order = ops.topk(ops.convert(first, "f32"), size, 0, "min", "value", "i64").output(1)
    rank = ops.topk(ops.convert(order, "f32"), size, 0, "min", "value", "i64").output(1)
    results = (
        ops.gather(values, order, axis), ops.gather(first, order, axis), ops.gather(rank, places, axis),
        ops.gather(counts, order, axis),
    )  # fmt: skip
    kinds = [port.get_element_type().get_type_name() for port in node.outputs()]
    replace_node(node, [ops.convert(result, kind).output(0) for result, kind in zip(results, kinds, strict=True)])
    return True


def _is_not_zero(ops: Any, node: Any) -> bool:
    """Of a conversion to booleans, for which OpenVINO takes the first output of an operation that has several."""
    from openvino.utils import replace_node

    value = node.input_value(0)
    if node.get_output_element_type(0).get_type_name() != "boolean" or not value.get_index():
        return False
    replace_node(node, ops.not_equal(value, ops.convert_like(_constant(ops, 0), value)))
    return True


def _check_index(ops: Any, node: Any, least: Any, end: Any) -> bool:
    """Has the second input end the call where a number of it is outside of ``least`` to ``end`` - 1."""
    return _fail_where(ops, node, _outside(ops, ops.convert(node.input_value(1), "i64"), least, end))


def _outside(ops: Any, index: Any, least: Any, end: Any) -> Any:
    return ops.logical_or(ops.less(index, least), ops.greater_equal(index, end))


def _fail_where(ops: Any, node: Any, wrong: Any) -> bool:
    """Has the second input end the call where a boolean is true."""
    value = node.input_value(1)
    every = ops.reduce_logical_or(ops.reshape(wrong, _constant(ops, [-1]), False), _constant(ops, 0), True)
    # Of one zero only the first is to be had: this operation refuses any other.
    zero = ops.gather_elements(_constant(ops, [0]), ops.convert(every, "i64"), 0)
    checked = ops.add(value, ops.reshape(ops.convert_like(zero, value), _constant(ops, []), False))
    node.input(1).replace_source_output(checked.output(0))
    return True


def _is_constant(node: Any) -> bool:
    """Whether the second input is known."""
    return bool(node.input_value(1).get_node().get_type_name() == "Constant")


def _are_sizes(node: Any, *numbers: int) -> bool:
    """Whether inputs are known, or come from sizes alone: shapes that follow from what is checked are not known."""
    left, seen = [node.input_value(number).get_node() for number in numbers], set()
    while left:
        source = left.pop()
        if source.get_name() in seen or source.get_type_name() in ("Constant", "ShapeOf"):
            continue
        seen.add(source.get_name())
        if not source.input_values():
            return False
        left += [each.get_node() for each in source.input_values()]
    return True


def _constant(ops: Any, value: int | list[int]) -> Any:
    return ops.constant(np.array(value, np.int64))


#: By a type, others that the plugin computes as it.
_SAME = {"f32": ("f16", "f64"), "f64": ("f32",), "i32": ("i64", "u32", "u64"), "i64": ("i32",)}
_CHANGES: tuple[tuple[list[str], Callable[[Any, Any], bool]], ...] = (
    (["opset11.TopK"], _keep_order),
    (["opset1.Convert"], _pass_on),
    (["opset1.Convert"], _wrap),
    (["opset1.Convert"], _is_not_zero),
    (["opset10.Unique"], _first_of_each),
    (["opset1.Gather", "opset7.Gather", "opset8.Gather"], _check_gather),
    (["opset5.GatherND", "opset8.GatherND"], _check_places),
    (["opset3.ScatterElementsUpdate", "opset12.ScatterElementsUpdate"], partial(_check_elements, from_end=True)),
    (["opset3.ScatterUpdate"], partial(_check_elements, from_end=False)),
    (["opset1.StridedSlice"], _check_slice),
    (["opset1.StridedSlice", "opset8.Slice"], _check_step),
    (["opset1.Pad", "opset12.Pad"], _check_pads),
    (["opset4.Range"], _check_range),
    (["opset1.Tile", "opset16.SegmentMax", "opset6.CTCGreedyDecoderSeqLen"], _check_not_negative),
    (["opset2.ROIPooling"], _check_boxes),
    (["opset1.Divide", "opset1.FloorMod", "opset1.Mod"], _check_divisor),
    (["opset15.BitwiseLeftShift", "opset15.BitwiseRightShift"], _clamp_shift),
)
