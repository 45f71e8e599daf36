"""A function without what a converter lacks."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from modelyard.export.rewrites._doubles import has_doubles, without_doubles
from modelyard.export.rewrites._replay import Replay, needs_rewrite
from modelyard.export.rewrites._rules import Target, rewrite_rules

#: Times that a rule's own operators are looked at; none needs more.
_ROUNDS = 3


def rewrite(function: Any, target: Target) -> Any:
    """The same function, of operators that the converter to a format has.

    Args:
        function: A concrete function without captures, of tensors.
        target: The format.

    Returns:
        The function itself, where nothing is to be done.

    Raises:
        ValueError: An operator cannot be written in others; the message names it.
    """
    for attempt in range(_ROUNDS):
        graph, rules = function.graph.as_graph_def(), rewrite_rules(target, complex_numbers=attempt == 0)
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
