"""A function without what a converter lacks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

import tensorflow as tf

from modelyard.export.rewrites import (
    _arithmetic,
    _arrays,
    _images,
    _integers,
    _linalg,
    _lists,
    _segments,
    _special,
    _spectra,
)
from modelyard.export.rewrites._floats import has_doubles, widen
from modelyard.export.rewrites._replay import Replay, Rule, Rules, has_cases, needs_rewrite

if TYPE_CHECKING:
    from tensorflow.core.framework.node_def_pb2 import NodeDef
    from tensorflow.python.types.core import ConcreteFunction

Target = Literal["onnx", "tflite"]
#: What prints or checks has no result: a replay does not reach it.
_DROPPED = {name: Rule(lambda node, inputs: None) for name in ("PrintV2", "StringFormat")}
#: tf2onnx knows these in TensorFlow's own loops, not in those that are built again.
_LISTS = {op: replace(rule, alone=False) for op, rule in _lists.RULES.items()}
_RULES: dict[Target, Rules] = {
    "onnx": {
        **_linalg.ONNX, **_integers.ONNX, **_arithmetic.ONNX, **_special.ONNX, **_arrays.ONNX, **_segments.ONNX,
        **_images.ONNX, **_LISTS,
    },
    "tflite": {
        **_linalg.TFLITE, **_integers.TFLITE, **_arithmetic.TFLITE, **_special.TFLITE, **_arrays.TFLITE,
        **_segments.TFLITE, **_images.TFLITE, **_lists.RULES, **_DROPPED,
    },
}  # fmt: skip


def rewrite_rules(target: Target, tables: Mapping[str, tf.lookup.StaticHashTable], *, complex_numbers: bool) -> Rules:
    """What the converter to a format has to be spared."""
    others = {**_RULES[target], **(_arrays.lookup_rules(tables) if target == "tflite" else {})}
    if not complex_numbers:
        return others
    both = {op: _first_of(rule, others[op]) for op, rule in _spectra.RULES.items() if op in others}
    return {**others, **_spectra.RULES, **both}


def _first_of(first: Rule, second: Rule) -> Rule:
    def build(node: NodeDef, inputs: Sequence[tf.Tensor]) -> tf.Tensor:
        return (first if first.applies(node) else second).build(node, inputs)

    return Rule(build, lambda node: first.applies(node) or second.applies(node))


#: Times that a rule's own operators are looked at; none needs more.
_ROUNDS = 3


def without_cases(function: ConcreteFunction) -> ConcreteFunction:
    """The same function with each ``tf.switch_case`` as a chain of ``tf.cond``: TensorFlow freezes no other."""
    graph = function.graph.as_graph_def()
    if not has_cases(graph):
        return function
    replay = Replay(graph, {})
    held = {inside.name: outside for outside, inside in function.graph.captures}
    arguments = [tensor for tensor in function.inputs if tensor.name not in held]
    names = sorted(function.structured_outputs)

    def call(*tensors: tf.Tensor) -> dict[str, tf.Tensor]:
        for variable in function.graph.variables:
            # Only a graph's own variables are frozen.
            tf.compat.v1.get_default_graph().watch_variable(variable)
        given = {argument.name: tensor for argument, tensor in zip(arguments, tensors, strict=True)}
        return dict(zip(names, replay(held | given, [tensor.name for tensor in function.outputs]), strict=True))

    specs = [tf.TensorSpec(tensor.shape, tensor.dtype, name=tensor.op.name) for tensor in arguments]
    return tf.function(call, input_signature=specs, autograph=False).get_concrete_function()


def rewrite(
    function: ConcreteFunction, target: Target, tables: Mapping[str, tf.lookup.StaticHashTable]
) -> ConcreteFunction:
    """The same function, of operators that the converter to a format has."""
    for attempt in range(_ROUNDS):
        graph, rules = function.graph.as_graph_def(), rewrite_rules(target, tables, complex_numbers=attempt == 0)
        # TFLite stores float64, and computes with none.
        single = target == "tflite" and has_doubles(graph)
        if not single and not needs_rewrite(graph, rules):
            break
        if single:
            widen(graph, ("float64",))
        function = _replayed(function, Replay(graph, rules), single=single)
    return function


def _replayed(function: ConcreteFunction, replay: Replay, *, single: bool) -> ConcreteFunction:
    names = [tensor.name for tensor in function.inputs]
    results = [tensor.name for tensor in function.outputs]
    specs = [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in function.inputs]

    def call(*tensors: tf.Tensor) -> list[tf.Tensor]:
        inputs = [tf.cast(each, tf.float32) if single and each.dtype == tf.float64 else each for each in tensors]
        found = replay(dict(zip(names, inputs, strict=True)), results)
        return [tf.cast(each, result.dtype) for each, result in zip(found, function.outputs, strict=True)]

    return tf.function(call, input_signature=specs, autograph=False).get_concrete_function()
