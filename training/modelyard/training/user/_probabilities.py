"""Whether the outputs of a classifier are probabilities already."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import keras
import tensorflow as tf

_PASS = ("Identity", "StopGradient", "Cast")
_CALLS = ("PartitionedCall", "StatefulPartitionedCall")
#: Keras' functions of labels and probabilities; its losses of that name say so themselves.
_OF_PROBABILITIES = (keras.losses.categorical_crossentropy, keras.losses.sparse_categorical_crossentropy)


def takes_probabilities(loss: object) -> bool:
    """Whether a loss is one of probabilities, not of logits."""
    return getattr(loss, "from_logits", None) is False or any(loss is each for each in _OF_PROBABILITIES)


def ends_in_softmax(call: Callable[[Any], Any], inputs: Any) -> bool:
    """Whether the last operation is a softmax, whatever layers, models and functions it is wrapped in.

    Args:
        call: From ``inputs`` to one tensor.
        inputs: Tensors of the shapes and dtypes that it takes.
    """
    specs = tf.nest.map_structure(lambda tensor: tf.TensorSpec(tensor.shape, tensor.dtype), inputs)
    with tf.init_scope():
        graph = tf.function(call, autograph=False).get_concrete_function(specs).graph
    definition = graph.as_graph_def()
    functions = {each.signature.name: each for each in definition.library.function}
    nodes = {node.name: node for node in definition.node}
    return _is_softmax(graph.outputs[0].name, nodes, functions)


def _is_softmax(tensor: str, nodes: Mapping[str, Any], functions: Mapping[str, Any]) -> bool:
    name, *place = tensor.split(":")
    node = nodes.get(name)
    # What a function takes is no operation of it.
    if node is None:
        return False
    if node.op in _PASS:
        return _is_softmax(node.input[0], nodes, functions)
    if node.op in _CALLS:
        function = functions[node.attr["f"].func.name]
        inner = {each.name: each for each in function.node_def}
        output = function.signature.output_arg[int(place[-1]) if place else 0].name
        return _is_softmax(function.ret[output], inner, functions)
    return bool(node.op == "Softmax")
