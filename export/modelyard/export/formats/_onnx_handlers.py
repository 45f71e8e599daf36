"""Operators that tf2onnx 1.17 lacks or writes wrongly, in the form of its own handlers."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from modelyard.export.text import Handler, make_string_handlers

if TYPE_CHECKING:
    import tensorflow as tf
    from tf2onnx.graph import Graph, Node


def _add(context: Graph, node: Node, name: str, _: list[str]) -> None:
    """A sum, with a scalar constant as one of one value.

    tf2onnx 1.17 takes a constant that is added to a convolution for its bias,
    and stops where it has no size at all: MobileNetV3 adds 3 in its activation.
    """
    inputs, output = list(node.input), node.output[0]
    dtype, shape = context.get_dtype(output), context.get_shape(output)
    if shape:
        for index, operand in enumerate(node.inputs):
            if operand.is_const() and operand.get_tensor_value(as_list=False).ndim == 0:
                value = operand.get_tensor_value(as_list=False).reshape(1)
                inputs[index] = context.make_const(f"{name}/{index}", value).output[0]
    context.remove_node(name)
    context.make_node("Add", inputs, outputs=[output], name=name, dtypes=[dtype], shapes=[shape])


def _erfc(context: Graph, node: Node, name: str, _: list[str]) -> None:
    """One less the error function: Keras 3.15 writes GELU by the complement, for which ONNX has no operator."""
    from tf2onnx import utils

    output, dtype, shape = node.output[0], context.get_dtype(node.output[0]), context.get_shape(node.output[0])
    source = node.input[0]
    context.remove_node(name)
    one = context.make_const(utils.make_name(name), np.array(1, utils.map_onnx_to_numpy_type(dtype)))
    erf = context.make_node("Erf", [source], dtypes=[dtype], shapes=[shape])
    context.make_node(
        "Sub", [one.output[0], erf.output[0]], outputs=[output], name=name, dtypes=[dtype], shapes=[shape]
    )


def _floor_mod(context: Graph, node: Node, name: str, _: list[str]) -> None:
    """A remainder with the sign of the divisor, which is ONNX's own for integers; tf2onnx truncates towards zero."""
    if _is_float(context, node):
        _default("FloorMod", 7, context, node)
        return
    node.type = "Mod"
    node.set_attr("fmod", 0)
    context.replace_input(node, node.input[1], _divisor(context, node)[0], 1)


def _divide(context: Graph, node: Node, name: str, _: list[str]) -> None:
    """A quotient rounded down, also of negative integers: what the remainder leaves divides without one."""
    if _is_float(context, node):
        _default(node.type, 6, context, node)
        return
    divisor, by_minus_one = _divisor(context, node)
    (dividend, _), floors = node.input, node.type == "FloorDiv"
    outputs, made = node.output, {"shapes": node.output_shapes, "dtypes": node.output_dtypes}
    context.remove_node(name)
    whole = dividend
    if floors:
        rest = context.make_node("Mod", [dividend, divisor], attr={"fmod": 0}, **made)
        whole = context.make_node("Sub", [dividend, rest.output[0]], **made).output[0]
    last = {"outputs": outputs, "name": name, **made}
    if by_minus_one is None:
        context.make_node("Div", [whole, divisor], **last)
        return
    quotient = context.make_node("Div", [whole, divisor], **made).output[0]
    negative = context.make_node("Neg", [dividend], **made).output[0]
    context.make_node("Where", [by_minus_one, negative, quotient], **last)


def _divisor(context: Graph, node: Node) -> tuple[str, str | None]:
    """A divisor with 1 for -1, and where that is: onnxruntime ends the process on the least integer by -1."""
    divisor = node.inputs[1]
    if divisor.is_const() and -1 not in divisor.get_tensor_value(as_list=False):
        return node.input[1], None
    dtype, shape = context.get_dtype(node.input[1]), context.get_shape(node.input[1])
    if dtype not in (_INT32, _INT64):
        return node.input[1], None
    one, minus_one = _integers(context, f"{node.name}/by", dtype, 1, -1)
    found = context.make_node("Equal", [node.input[1], minus_one]).output[0]
    return context.make_node("Where", [found, one, node.input[1]], dtypes=[dtype], shapes=[shape]).output[0], found


def _integers(context: Graph, prefix: str, dtype: int, *values: int) -> list[str]:
    """Constants of whole numbers, in the dtype that they are computed with."""
    kind = np.int32 if dtype == _INT32 else np.int64
    return [context.make_const(f"{prefix}{value}", np.array(value, kind)).output[0] for value in values]


def _select(context: Graph, node: Node, name: str, _: list[str]) -> None:
    """A choice of numbers by ONNX's Where: tf2onnx adds products with 0 and 1, and 0 times infinity or NaN is NaN.

    What is not chosen is often just that: ``tf.where(x > 0, tf.math.log(x), 0.0)``.
    """
    if context.get_dtype(node.input[1]) in _ORDERED:
        node.set_attr("handles_nan", True)
    _default(node.type, 9, context, node)
    node.attr.pop("handles_nan", None)


def _top_k(context: Graph, node: Node, name: str, _: list[str]) -> None:
    """The largest values in their own type: tf2onnx compares all in float32, which rounds integers from 2**24 on."""
    outputs, shapes, dtypes = list(node.output), node.output_shapes, node.output_dtypes
    source, count = node.input
    dtype = dtypes[0] if dtypes[0] in _ORDERED else _INT64
    context.remove_node(name)
    one = context.make_const(f"{name}/one", np.array([1], np.int64)).output[0]
    size = context.make_node("Reshape", [_cast(context, count, _INT64), one]).output[0]
    found = context.make_node(
        "TopK", [_cast(context, source, dtype), size], output_count=2, shapes=shapes, dtypes=[dtype, _INT64]
    )
    for number, output in enumerate(outputs):
        context.make_node(
            "Cast", [found.output[number]], attr={"to": dtypes[number]}, outputs=[output], name=f"{name}/{number}",
            shapes=[shapes[number]], dtypes=[dtypes[number]],
        )  # fmt: skip


def _is_float(context: Graph, node: Node) -> bool:
    from onnx import TensorProto

    return context.get_dtype(node.input[0]) in (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE)


def _default(op: str, version: int, context: Graph, node: Node) -> None:
    from tf2onnx.handler import tf_op

    handler, arguments = tf_op.get_opsets()[""][version][op]
    handler(context, node, **arguments)


def _lookup(
    tables: Mapping[str, tuple[tf.Tensor, tf.Tensor]], context: Graph, node: Node, name: str, _: list[str]
) -> None:
    """A table of numbers or strings as a LabelEncoder; tf2onnx's own has strings to int64 and back only."""
    table = node.inputs[0]
    while table.type == "Identity":
        table = table.inputs[0]
    keys, values = (each.numpy() for each in tables[table.get_attr_value("shared_name").decode()])
    if not node.inputs[2].is_const():
        raise ValueError("the default of a lookup table is no constant")
    default = node.inputs[2].get_tensor_value(as_list=False).item()
    inputs, outputs, shapes, dtypes = list(node.input), list(node.output), node.output_shapes, node.output_dtypes
    if not {keys.dtype.kind, values.dtype.kind} <= _LABELS.keys():
        raise ValueError(f"a lookup table from {keys.dtype} to {values.dtype}, which ONNX has no operator for")
    takes, gives = _LABELS[keys.dtype.kind], _LABELS[values.dtype.kind]
    context.remove_node(name)
    source = _cast(context, inputs[1], takes[1])
    attributes = {
        f"keys_{takes[0]}s": keys.tolist(), f"values_{gives[0]}s": values.tolist(), f"default_{gives[0]}": default
    }  # fmt: skip
    found = context.make_node(
        "LabelEncoder", [source], attr=attributes, shapes=shapes, dtypes=[gives[1]], domain="ai.onnx.ml"
    )
    context.make_node(
        "Cast", found.output, attr={"to": dtypes[0]}, outputs=outputs, name=name, shapes=shapes, dtypes=dtypes
    )


def _gather(context: Graph, node: Node, name: str, _: list[str]) -> None:
    """With an error for an index of a request that is below zero, as TensorFlow has it: ONNX counts from the end."""
    source, index, op = node.inputs[1], node.input[1], node.type
    while source.type in _PASSING:
        source = source.inputs[0]
    dtype = context.get_dtype(index)
    if source.is_graph_input() and dtype in (_INT32, _INT64):
        zero, far = _integers(context, f"{name}/", dtype, 0, 2**31 - 1)
        below = context.make_node("Less", [index, zero]).output[0]
        shape = context.get_shape(index)
        checked = context.make_node("Where", [below, far, index], dtypes=[dtype], shapes=[shape]).output[0]
        context.replace_input(node, index, checked, 1)
    if op == "GatherNd":
        node.type = "GatherND"
    _default(op, 12 if op == "GatherV2" and context.opset >= 12 else 11, context, node)


def _slice(context: Graph, node: Node, name: str, _: list[str]) -> None:
    """With all that is left for a size of -1, where begin or size are computed.

    tf2onnx 1.17 adds the largest integer to such sizes, and begin to that, which is less than nothing from 3 on.
    """
    _, begin, size = node.input
    if not (node.inputs[1].is_const() and node.inputs[2].is_const()):
        dtype, shape = context.get_dtype(size), context.get_shape(size)
        rest, last = _integers(context, f"{name}/", dtype, -1, 2**31 - 1 if dtype == _INT32 else 2**63 - 1)
        left = context.make_node("Sub", [last, begin], dtypes=[dtype], shapes=[shape]).output[0]
        whole = context.make_node("Equal", [size, rest]).output[0]
        known = context.make_node("Where", [whole, left, size], dtypes=[dtype], shapes=[shape]).output[0]
        context.replace_input(node, size, known, 2)
    _default("Slice", 11, context, node)


def _bucketize(context: Graph, node: Node, name: str, _: list[str]) -> None:
    """How many boundaries a number has reached."""
    boundaries = np.array(node.get_attr_value("boundaries"), np.float32)
    source, outputs, shapes, dtypes = node.input[0], list(node.output), node.output_shapes, node.output_dtypes
    context.remove_node(name)
    last = context.make_const(f"{name}/axis", np.array([-1], np.int64)).output[0]
    column = context.make_node("Unsqueeze", [_cast(context, source, _FLOAT), last])
    limits = context.make_const(f"{name}/boundaries", boundaries).output[0]
    below = context.make_node("Less", [column.output[0], limits])
    # NaN is below nothing, and TensorFlow has it in the last bucket.
    reached = context.make_node("Not", below.output)
    numbers = _cast(context, reached.output[0], dtypes[0])
    context.make_node(
        "ReduceSum", [numbers, last], attr={"keepdims": 0}, outputs=outputs, name=name, shapes=shapes, dtypes=dtypes
    )


def _resize(context: Graph, node: Node, name: str, _: list[str]) -> None:
    """By its size where a scale in float32 falls short of it: tf2onnx makes 8 rows of 7 x 1.2857142."""
    shape, size = context.get_shape(node.input[0]), node.inputs[1]
    if shape and -1 not in shape[1:3] and size.is_const():
        known, wanted = np.array(shape[1:3]), size.get_tensor_value(as_list=False)
        scales = (wanted / known).astype(np.float32).astype(np.float64)
        if (np.floor(known * scales) != wanted).any():
            # What is no constant it takes as a size.
            hidden = context.make_node("Identity", [node.input[1]])
            context.replace_input(node, node.input[1], hidden.output[0], 1)
    _default(node.type, 11, context, node)


def _scale_and_translate(context: Graph, node: Node, name: str, _: list[str]) -> None:
    """``tf.image.resize(antialias=True)``; verification tells where it is called otherwise."""
    kernel = node.get_attr_value("kernel_type", b"lanczos3").decode()
    if kernel not in _KERNELS or not node.get_attr_value("antialias", 1):
        raise ValueError(f"ONNX has no resize with the kernel {kernel!r}")
    images, size = node.input[:2]
    outputs, shapes, dtypes = list(node.output), node.output_shapes, node.output_dtypes
    context.remove_node(name)
    first = context.make_node("Transpose", [_cast(context, images, _FLOAT)], attr={"perm": [0, 3, 1, 2]})
    shape = context.make_node("Shape", first.output, attr={"end": 2})
    sizes = context.make_node("Concat", [shape.output[0], _cast(context, size, _INT64)], attr={"axis": 0})
    resized = context.make_node(
        "Resize", [first.output[0], "", "", sizes.output[0]],
        attr={"antialias": 1, "coordinate_transformation_mode": "half_pixel", **_KERNELS[kernel]},
    )  # fmt: skip
    context.make_node(
        "Transpose", resized.output, attr={"perm": [0, 2, 3, 1]}, outputs=outputs, name=name, shapes=shapes,
        dtypes=dtypes,
    )  # fmt: skip


def _rfft(context: Graph, node: Node, name: str, _: list[str]) -> None:
    """A spectrum as pairs of numbers in a last axis more, which the handlers of complex numbers take."""
    signal, outputs = node.input[0], list(node.output)
    shape = context.get_shape(signal)
    if not shape or not node.inputs[1].is_const():
        raise ValueError("the length of an RFFT is no constant")
    length = int(node.inputs[1].get_tensor_value(as_list=False).item())
    # tf2onnx may have lost what TensorFlow knows.
    if shape[-1] not in (-1, length):
        raise ValueError(f"an RFFT over {length} values has {shape[-1]}")
    context.remove_node(name)
    last = context.make_const(f"{name}/axis", np.array([-1], np.int64)).output[0]
    column = context.make_node("Unsqueeze", [signal, last])
    context.make_node(
        "DFT", column.output, attr={"axis": len(shape) - 1, "onesided": 1}, outputs=outputs, name=name,
        shapes=[[*shape[:-1], length // 2 + 1, 2]], dtypes=[_FLOAT],
    )  # fmt: skip


def _part(index: int, context: Graph, node: Node, name: str, _: list[str]) -> None:
    """The real or the imaginary part."""
    source, outputs, shapes = node.input[0], list(node.output), node.output_shapes
    context.remove_node(name)
    which = context.make_const(f"{name}/index", np.array(index, np.int64)).output[0]
    context.make_node(
        "Gather", [source, which], attr={"axis": -1}, outputs=outputs, name=name, shapes=shapes, dtypes=[_FLOAT]
    )


def _cast(context: Graph, tensor: str, dtype: int) -> str:
    cast = context.make_node("Cast", [tensor], attr={"to": dtype}, shapes=[context.get_shape(tensor)], dtypes=[dtype])
    return str(cast.output[0])


#: onnx.TensorProto.FLOAT, INT64 and STRING: to import onnx takes a second.
_FLOAT, _INT32, _INT64, _STRING, _DOUBLE = 1, 6, 7, 8, 11
#: What passes numbers on as they are.
_PASSING = frozenset("Cast ExpandDims Identity Reshape Slice Squeeze StridedSlice Transpose Unsqueeze".split())
#: What onnxruntime sorts and chooses.
_ORDERED = frozenset({_FLOAT, _INT32, _INT64, _DOUBLE})
#: By kind of a numpy dtype, what LabelEncoder calls it and computes with.
_LABELS = {"O": ("string", _STRING), "i": ("int64", _INT64), "f": ("float", _FLOAT)}
#: By TensorFlow's name of a kernel, the attributes of Resize. Keys' cubic has a = -1/2.
_KERNELS: Mapping[str, Mapping[str, str | int | float]] = {
    "triangle": {"mode": "linear", "exclude_outside": 1},
    "keyscubic": {"mode": "cubic", "cubic_coeff_a": -0.5, "exclude_outside": 1},
}


def make_handlers(tables: Mapping[str, tuple[tf.Tensor, tf.Tensor]]) -> dict[str, tuple[Handler, list[str]]]:
    """Handlers by TensorFlow's name of the operator, as ``tf2onnx.tfonnx.process_tf_graph`` takes them."""
    handlers: dict[str, Handler] = {
        "AddV2": _add,
        "Bucketize": _bucketize,
        "Erfc": _erfc,
        "FloorDiv": _divide,
        "FloorMod": _floor_mod,
        "GatherNd": _gather,
        "GatherV2": _gather,
        "Imag": partial(_part, 1),
        "LookupTableFindV2": partial(_lookup, tables),
        "RFFT": _rfft,
        "Real": partial(_part, 0),
        "ResizeBilinear": _resize,
        "ResizeNearestNeighbor": _resize,
        "ScaleAndTranslate": _scale_and_translate,
        "Select": _select,
        "SelectV2": _select,
        "Slice": _slice,
        "TopKV2": _top_k,
        "TruncateDiv": _divide,
    }
    handlers |= make_string_handlers()
    return {op: (handler, []) for op, handler in handlers.items()}
