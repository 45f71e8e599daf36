"""float64 as float32, for a runtime that has no kernels of the first; inputs and outputs keep their types."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from modelyard.export.rewrites._replay import all_nodes

_DOUBLE, _FLOAT = tf.float64.as_datatype_enum, tf.float32.as_datatype_enum


def has_doubles(graph: Any) -> bool:
    """Whether a graph computes in float64.

    Args:
        graph: A ``GraphDef``.
    """
    return any(
        value.type == _DOUBLE for node in all_nodes(graph) if node.op != "Placeholder" for value in node.attr.values()
    )


def without_doubles(graph: Any) -> Any:
    """A graph that computes in float32 where another does in float64.

    Args:
        graph: A ``GraphDef``.
    """
    graph = type(graph).FromString(graph.SerializeToString())
    for node in all_nodes(graph):
        if node.op == "Const" and node.attr["dtype"].type == _DOUBLE:
            value = tf.make_ndarray(node.attr["value"].tensor).astype(np.float32)
            node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(value))
        for attribute in node.attr.values():
            if attribute.type == _DOUBLE:
                attribute.type = _FLOAT
            for index, kind in enumerate(attribute.list.type if attribute.HasField("list") else ()):
                if kind == _DOUBLE:
                    attribute.list.type[index] = _FLOAT
    for body in graph.library.function:
        for argument in (*body.signature.input_arg, *body.signature.output_arg):
            if argument.type == _DOUBLE:
                argument.type = _FLOAT
    return graph
