"""Finds the parse of ``tf.Example`` messages inside a graph and cuts the graph after it.

A model that somebody else made parses in its graph, with an operation that no other runtime has. What follows it is
plain numbers: that part is converted, and the parse becomes a feature spec that servers without TensorFlow read.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf
from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2
from tensorflow.python.ops.op_selector import UnliftableError

from modelyard.artifact import FEATURE_DTYPES, ExampleDecode, FeatureSpec
from modelyard.export.formats import forget_initializers, named

if TYPE_CHECKING:
    from tensorflow.core.framework.node_def_pb2 import NodeDef
    from tensorflow.python.types.core import ConcreteFunction, PolymorphicFunction

# Of each, where the names of the dense features and their defaults stand among its inputs.
_PARSERS = frozenset({"ParseExample", "ParseExampleV2"})
_COPIES = frozenset({"Identity", "PlaceholderWithDefault"})


def cut_examples(function: PolymorphicFunction) -> tuple[ExampleDecode, PolymorphicFunction] | None:
    """Splits a function over serialized Examples into a feature spec and a function over dense tensors."""
    (source,) = function.input_signature
    concrete = function.get_concrete_function()
    forget_initializers(concrete)
    constant = convert_variables_to_constants_v2(concrete, lower_control_flow=False, aggressive_inlining=True)
    graph = constant.graph.as_graph_def()
    for node in graph.node:
        # Inlining ties every constant of a function to its call. Without variables no order is left to keep.
        inputs = [name for name in node.input if not name.startswith("^")]
        del node.input[:]
        node.input.extend(inputs)
    nodes = {node.name: node for node in graph.node}
    parsers = [node for node in graph.node if node.op in _PARSERS]
    if len(parsers) != 1 or _origin(parsers[0].input[0], nodes) != constant.inputs[0].op.name:
        return None
    parser = parsers[0]
    imported = tf.compat.v1.wrap_function(lambda: tf.graph_util.import_graph_def(graph, name=""), [])
    features = _features(parser, imported)
    if not features:
        return None
    names = sorted(concrete.structured_outputs)
    dense = [imported.graph.get_tensor_by_name(f"{parser.name}:{index}") for index in range(len(features))]
    fetches = [imported.graph.get_tensor_by_name(tensor.name) for tensor in constant.outputs]
    try:
        pruned = imported.prune(dense, fetches)
    except UnliftableError:
        # An output needs the message itself.
        return None

    def call(*tensors: tf.Tensor) -> dict[str, tf.Tensor]:
        values = pruned(*tensors)
        values = list(values) if isinstance(values, list | tuple) else [values]
        return {name: named(value, name) for name, value in zip(names, values, strict=True)}

    specs = [tf.TensorSpec([None, *each.shape], tf.as_dtype(each.dtype), name=each.tensor.name) for each in features]
    return ExampleDecode(input=source.name, features=features), tf.function(
        call, input_signature=specs, autograph=False
    )


def _features(parser: NodeDef, imported: ConcreteFunction) -> tuple[FeatureSpec, ...]:
    """The dense features; nothing where there are others too."""
    dtypes = [tf.as_dtype(kind).name for kind in parser.attr["Tdense"].list.type]
    shapes = [[dim.size for dim in shape.dim] for shape in parser.attr["dense_shapes"].list.shape]
    count = len(dtypes)
    if parser.op == "ParseExampleV2":
        sparse = parser.attr["num_sparse"].i + len(parser.attr["ragged_value_types"].list.type)
        keys = _constants(imported, parser.input[3:4])[0].tolist()
        defaults = _constants(imported, parser.input[5 : 5 + count])
    else:
        sparse = parser.attr["Nsparse"].i
        keys = [each.item() for each in _constants(imported, parser.input[2 : 2 + count])]
        defaults = _constants(imported, parser.input[2 + count : 2 + 2 * count])
    if sparse or not set(dtypes) <= set(FEATURE_DTYPES) or any(size < 0 for shape in shapes for size in shape):
        return ()
    try:
        names = [key.decode() for key in keys]
        values = [_default(each, shape) for each, shape in zip(defaults, shapes, strict=True)]
    except UnicodeDecodeError:
        return ()
    return tuple(
        FeatureSpec(
            name=name,
            dtype=dtype,
            shape=tuple(shape),
            default=default,
            input=None if name.isidentifier() else re.sub(r"\W", "_", f"feature_{name}"),
        )
        for name, dtype, shape, default in zip(names, dtypes, shapes, values, strict=True)
    )


def _default(values: Any, shape: Sequence[int]) -> tuple[Any, ...] | None:
    # No value at all is how the operation marks a required feature.
    if values.size != math.prod(shape) or not values.size:
        return None
    return tuple(value.decode() if isinstance(value, bytes) else value for value in values.ravel().tolist())


def _constants(imported: ConcreteFunction, names: Sequence[str]) -> list[Any]:
    tensors = [imported.graph.get_tensor_by_name(name if ":" in name else f"{name}:0") for name in names]
    # A scalar string comes as bytes.
    values = [tensor.numpy() for tensor in imported.prune([], tensors)()]
    return [np.array(value, object) if isinstance(value, bytes) else value for value in values]


def _origin(name: str, nodes: Mapping[str, NodeDef]) -> str:
    """The node that a tensor is a plain copy of."""
    name = name.partition(":")[0]
    while name in nodes and nodes[name].op in _COPIES:
        name = nodes[name].input[0].partition(":")[0]
    return name
