"""Floats of another width as float32, for runtimes that have no kernels of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np
import tensorflow as tf

from modelyard.errors import ConversionError
from modelyard.export.rewrites._replay import all_nodes

if TYPE_CHECKING:
    from tensorflow.core.framework.graph_pb2 import GraphDef
    from tensorflow.core.framework.node_def_pb2 import NodeDef


def has_doubles(graph: GraphDef) -> bool:
    """Whether a graph computes in float64."""
    double = tf.float64.as_datatype_enum
    return any(
        value.type == double for node in all_nodes(graph) if node.op != "Placeholder" for value in node.attr.values()
    )


def widen(graph: GraphDef, dtypes: Iterable[str]) -> None:
    """Makes a graph compute in float32 what it computes in other floats."""
    wide = {tf.as_dtype(name).as_datatype_enum for name in dtypes}
    if not wide:
        return
    for node in all_nodes(graph):
        if node.op == "Bitcast" and wide & set(kinds_of(node)):
            raise ConversionError(f"it looks at the bits of {', '.join(sorted(dtypes))} numbers (tf.bitcast)")
        for attribute in node.attr.values():
            _widen_attribute(attribute, wide)
    for body in graph.library.function:
        for argument in (*body.signature.input_arg, *body.signature.output_arg):
            if argument.type in wide:
                argument.type = tf.float32.as_datatype_enum
        for attribute in body.attr.values():
            _widen_attribute(attribute, wide)


def _widen_attribute(attribute: tf.compat.v1.AttrValue, wide: set[int]) -> None:
    single = tf.float32.as_datatype_enum
    kind = attribute.WhichOneof("value")
    if kind == "type" and attribute.type in wide:
        attribute.type = single
    elif kind == "list" and wide & set(attribute.list.type):
        attribute.list.type[:] = [single if each in wide else each for each in attribute.list.type]
    elif kind == "tensor" and attribute.tensor.dtype in wide:
        value = tf.make_ndarray(attribute.tensor).astype(np.float32)
        attribute.tensor.CopyFrom(tf.make_tensor_proto(value))


def kinds_of(node: NodeDef) -> Iterator[int]:
    """The dtypes in the attributes of a node, as TensorFlow numbers them."""
    for attribute in node.attr.values():
        yield attribute.type
        yield from attribute.list.type
