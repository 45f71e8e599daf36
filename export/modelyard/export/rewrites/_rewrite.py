"""A function without what a converter lacks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from modelyard.export.rewrites._doubles import has_doubles, without_doubles
from modelyard.export.rewrites._replay import Replay, has_cases, needs_rewrite
from modelyard.export.rewrites._rules import Target, rewrite_rules

#: Times that a rule's own operators are looked at; none needs more.
_ROUNDS = 3


def without_cases(function: Any) -> Any:
    """The same function, with a choice among several branches made of choices between two: TensorFlow freezes no other.

    Args:
        function: A concrete function that returns a mapping.

    Returns:
        The function itself, where nothing is to be done.
    """
    graph = function.graph.as_graph_def()
    if not has_cases(graph):
        return function
    replay = Replay(graph, {})
    held = {inside.name: outside for outside, inside in function.graph.captures}
    arguments = [tensor for tensor in function.inputs if tensor.name not in held]
    names = sorted(function.structured_outputs)

    def call(*tensors: Any) -> dict[str, Any]:
        for variable in function.graph.variables:
            # Only a graph's own variables are frozen.
            tf.compat.v1.get_default_graph().watch_variable(variable)
        given = {argument.name: tensor for argument, tensor in zip(arguments, tensors, strict=True)}
        return dict(zip(names, replay(held | given, [tensor.name for tensor in function.outputs]), strict=True))

    specs = [tf.TensorSpec(tensor.shape, tensor.dtype, name=tensor.op.name) for tensor in arguments]
    return tf.function(call, input_signature=specs, autograph=False).get_concrete_function()


def rewrite(function: Any, target: Target, tables: Mapping[str, Any]) -> Any:
    """The same function, of operators that the converter to a format has.

    Args:
        function: A concrete function without captures, of tensors.
        target: The format.
        tables: Its lookup tables by the ``shared_name`` of their nodes.

    Returns:
        The function itself, where nothing is to be done.

    Raises:
        ValueError: An operator cannot be written in others; the message names it.
    """
    for attempt in range(_ROUNDS):
        graph, rules = function.graph.as_graph_def(), rewrite_rules(target, tables, complex_numbers=attempt == 0)
        # TFLite stores float64, and computes with none.
        single = target == "tflite" and has_doubles(graph)
        if not single and not needs_rewrite(graph, rules):
            break
        graph = without_doubles(graph) if single else graph
        function = _replayed(function, Replay(graph, rules), single=single)
    return function


def _replayed(function: Any, replay: Replay, *, single: bool) -> Any:
    names = [tensor.name for tensor in function.inputs]
    results = [tensor.name for tensor in function.outputs]
    specs = [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in function.inputs]

    def call(*tensors: Any) -> list[Any]:
        inputs = [tf.cast(each, tf.float32) if single and each.dtype == tf.float64 else each for each in tensors]
        found = replay(dict(zip(names, inputs, strict=True)), results)
        return [tf.cast(each, result.dtype) for each, result in zip(found, function.outputs, strict=True)]

    return tf.function(call, input_signature=specs, autograph=False).get_concrete_function()
