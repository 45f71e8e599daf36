"""Floats of half precision, and of double: computed in float32 by the formats whose runtimes lack them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from modelyard.errors import ConversionError

#: By format, what its runtimes have no operations for, or only slow and coarse ones that cast to and fro.
_WIDENED: Mapping[str, frozenset[str]] = {
    "onnx": frozenset({"bfloat16", "float16"}),
    "tflite": frozenset({"bfloat16", "float16", "float64"}),
}
#: What TensorFlow rounds a number by, as a share of it.
ROUNDING: Mapping[str, float] = {"float16": 2.0**-10, "bfloat16": 2.0**-7}


def widened_dtypes(function: Any, format: str) -> frozenset[str]:
    """Dtypes of a function that a format computes in float32.

    Args:
        function: A ``tf.function`` with an input signature.
        format: Such as ``onnx``.
    """
    unknown = _WIDENED.get(format, frozenset())
    # A double among floats is a constant that converters fold: only what computes in doubles is computed in floats.
    return frozenset(dtype for dtype in float_dtypes(function) if dtype in unknown)


def float_dtypes(function: Any) -> frozenset[str]:
    """Dtypes of floats that a function computes with.

    Args:
        function: A ``tf.function`` with an input signature.
    """
    graph = function.get_concrete_function().graph.as_graph_def()
    kinds = {kind for node in _nodes(graph) if node.op != "Const" for kind in _kinds(node)}
    return frozenset(name for name in ("bfloat16", "float16", "float64") if _enum(name) in kinds)


def widen(graph: Any, dtypes: Iterable[str]) -> None:
    """Makes a frozen graph compute in float32 what it computes in other floats.

    Args:
        graph: Is changed.
        dtypes: Such as ``bfloat16``.

    Raises:
        ConversionError: It looks at the bits of such numbers.
    """
    wide = {_enum(name) for name in dtypes}
    if not wide:
        return
    for node in _nodes(graph):
        if node.op == "Bitcast" and wide & set(_kinds(node)):
            raise ConversionError(f"it looks at the bits of {', '.join(sorted(dtypes))} numbers (tf.bitcast)")
        for attribute in node.attr.values():
            _widen_attribute(attribute, wide)
    for body in graph.library.function:
        for argument in (*body.signature.input_arg, *body.signature.output_arg):
            if argument.type in wide:
                argument.type = tf.float32.as_datatype_enum
        for attribute in body.attr.values():
            _widen_attribute(attribute, wide)


def _widen_attribute(attribute: Any, wide: set[int]) -> None:
    single = tf.float32.as_datatype_enum
    kind = attribute.WhichOneof("value")
    if kind == "type" and attribute.type in wide:
        attribute.type = single
    elif kind == "list" and wide & set(attribute.list.type):
        attribute.list.type[:] = [single if each in wide else each for each in attribute.list.type]
    elif kind == "tensor" and attribute.tensor.dtype in wide:
        value = tf.make_ndarray(attribute.tensor).astype(np.float32)
        attribute.tensor.CopyFrom(tf.make_tensor_proto(value))


def _nodes(graph: Any) -> Iterator[Any]:
    yield from graph.node
    for body in graph.library.function:
        yield from body.node_def


def _kinds(node: Any) -> Iterator[int]:
    for attribute in node.attr.values():
        yield attribute.type
        yield from attribute.list.type


def _enum(name: str) -> int:
    number: int = tf.as_dtype(name).as_datatype_enum
    return number
