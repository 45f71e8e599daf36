"""A frozen graph, built again node by node, with other operators where a rule has them.

What a converter lacks is composed of TensorFlow operators that it knows, by plain
TensorFlow code, and the same composition serves both converters. Functions that
are called are written out on the way, and loops and branches are built again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import tensorflow as tf
from tensorflow.python.framework.function_def_to_graph import function_def_to_graph_def

from modelyard.export.rewrites._values import Complex, TensorList, as_tensor, split

if TYPE_CHECKING:
    from tensorflow.core.framework.graph_pb2 import GraphDef
    from tensorflow.core.framework.node_def_pb2 import NodeDef
    from tensorflow.core.framework.tensor_shape_pb2 import TensorShapeProto

_CALLS = frozenset({"PartitionedCall", "StatefulPartitionedCall"})
_BRANCHES = frozenset({"If", "StatelessIf"})
_CASES = frozenset({"Case", "StatelessCase"})
_LOOPS = frozenset({"While", "StatelessWhile"})


@dataclass(frozen=True)
class Rule:
    """What is made of an operator."""

    #: Takes the ``NodeDef`` and its inputs, gives one value or several; None to leave the node as it is.
    build: Callable[[NodeDef, Sequence[tf.Tensor]], object]
    #: Tells by the ``NodeDef`` alone whether it is for a node.
    applies: Callable[[NodeDef], bool] = lambda node: True
    #: Whether such a node is a reason to build a graph again.
    alone: bool = True


Rules = Mapping[str, Rule]


def needs_rewrite(graph: GraphDef, rules: Rules) -> bool:
    """Whether there is a node that a rule is for, or a call that nothing inlines."""
    kept = {each.signature.name for each in graph.library.function if each.attr["_noinline"].b}
    for node in all_nodes(graph):
        rule = rules.get(node.op)
        if rule is not None and rule.alone and rule.applies(node):
            return True
        if node.op in _CALLS and (node.attr["_noinline"].b or node.attr["f"].func.name in kept):
            return True
    # tf2onnx knows lists that are written to in loops, and nowhere else: tf.scan writes its first element before.
    return any(node.op == "TensorListSetItem" for node in graph.node)


def has_cases(graph: GraphDef) -> bool:
    """Whether there is a choice among several branches, as ``tf.switch_case`` makes it."""
    return any(node.op in _CASES for node in all_nodes(graph))


def all_nodes(graph: GraphDef) -> Iterator[NodeDef]:
    """The nodes of a graph and of its functions."""
    yield from graph.node
    for body in graph.library.function:
        yield from body.node_def


class Replay:
    """Builds a graph again, in TensorFlow's current one."""

    def __init__(self, graph: GraphDef, rules: Rules) -> None:
        self._graph, self._rules = graph, rules
        self._functions = {each.signature.name: each for each in graph.library.function}
        # To read a function, TensorFlow looks for those that it calls.
        self._library = tf.Graph()
        with self._library.as_default():
            tf.graph_util.import_graph_def(tf.compat.v1.GraphDef(library=graph.library, versions=graph.versions))
        self._bodies: dict[str, tuple[GraphDef, list[str], list[str]]] = {}

    def __call__(self, inputs: Mapping[str, tf.Tensor], outputs: Sequence[str]) -> list[tf.Tensor]:
        """Gives the outputs as tensors."""
        return [as_tensor(each) for each in self._run(self._graph, inputs, outputs)]

    def _run(self, graph: GraphDef, inputs: Mapping[str, tf.Tensor], outputs: Sequence[str]) -> list[tf.Tensor]:
        nodes = {node.name: node for node in graph.node}
        done = {_parse(name)[0]: [value] for name, value in inputs.items()}
        waiting = [_parse(name)[0] for name in reversed(outputs)]
        while waiting:
            node = nodes[waiting[-1]]
            if node.name in done:
                waiting.pop()
                continue
            sources = [_parse(name) for name in node.input if not name.startswith("^")]
            missing = [name for name, _ in sources if name not in done]
            if missing:
                waiting += reversed(missing)
                continue
            done[node.name] = self._node(node, [done[name][index] for name, index in sources])
        return [done[name][index] for name, index in map(_parse, outputs)]

    def _node(self, node: NodeDef, inputs: list[tf.Tensor]) -> list[tf.Tensor]:
        rule = self._rules.get(node.op)
        built = rule.build(node, inputs) if rule and rule.applies(node) else None
        if built is not None:
            return list(built) if isinstance(built, list | tuple) else [built]
        if node.op in _CALLS:
            return self._call(node.attr["f"].func.name, inputs)
        if node.op in _BRANCHES:
            return self._branch([node.attr[f"{name}_branch"].func.name for name in ("else", "then")], inputs)
        if node.op in _CASES:
            return self._branch([each.name for each in node.attr["branches"].list.func], inputs)
        if node.op in _LOOPS:
            return self._loop(node, inputs)
        if node.op == "Identity" and not isinstance(inputs[0], tf.Tensor):
            return inputs
        if any(isinstance(each, TensorList) for each in inputs):
            raise ValueError(f"{node.op} of a tf.TensorArray ({node.name}) is not supported")
        return list(emit(node, [as_tensor(each) for each in inputs]).outputs)

    def _body(self, name: str) -> tuple[GraphDef, list[str], list[str]]:
        """A function as a graph, with the names of its inputs and outputs."""
        if name not in self._bodies:
            function = self._functions[name]
            with self._library.as_default():
                graph, flat = function_def_to_graph_def(function)
            names = [f"{each.name}:0" for each in function.signature.input_arg]
            results = [flat[function.ret[each.name]] for each in function.signature.output_arg]
            self._bodies[name] = graph, names, results
        return self._bodies[name]

    def _call(self, name: str, inputs: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        graph, names, results = self._body(name)
        return self._run(graph, dict(zip(names, inputs, strict=True)), results)

    def _branch(self, names: Sequence[str], inputs: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        chosen, values = tf.reshape(inputs[0], []), inputs[1:]
        restore: Any = None

        def run(name: str) -> list[tf.Tensor]:
            nonlocal restore
            tensors, restore = split(self._call(name, values))
            return tensors

        def choose(branches: Sequence[str], first: int) -> list[tf.Tensor]:
            if len(branches) == 1:
                return run(branches[0])
            # No converter knows a choice among more than two.
            found = tf.cond(
                tf.equal(chosen, first), partial(run, branches[0]), partial(choose, branches[1:], first + 1)
            )
            return list(found) if isinstance(found, list | tuple) else [found]

        if chosen.dtype != tf.int32:
            chosen = tf.cast(tf.cast(chosen, tf.bool), tf.int32)
        found = choose(names, 0)
        return list(restore(found))

    def _loop(self, node: NodeDef, inputs: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        body, condition = (node.attr[name].func.name for name in ("body", "cond"))
        graph, names, results = self._body(body)
        # What a loop hands on unchanged need not be a variable of it.
        moving = [i for i, result in enumerate(results) if _origin(graph, result) != names[i]]
        values = list(inputs)
        if any(isinstance(values[i], TensorList) and values[i].items is None for i in moving):
            # How large the elements of a list are shows when one is made: in a step whose results are not used.
            for i, (value, after) in enumerate(zip(inputs, self._call(body, inputs), strict=True)):
                values[i] = value.empty_like(after) if isinstance(value, TensorList) else value
        start, restore = split([values[i] for i in moving])
        declared = node.attr["output_shapes"].list.shape
        shapes, _ = split([self._invariant(values[i], declared[i] if declared else None) for i in moving])

        def current(tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
            merged = list(values)
            for i, value in zip(moving, restore(tensors), strict=True):
                merged[i] = value
            return merged

        def step(*tensors: tf.Tensor) -> list[tf.Tensor]:
            after = self._call(body, current(tensors))
            return split([after[i] for i in moving])[0]

        result = tf.while_loop(
            lambda *tensors: tf.reshape(self._call(condition, current(tensors))[0], []),
            step,
            start,
            shape_invariants=shapes,
        )
        return current(result)

    @staticmethod
    def _invariant(value: tf.Tensor, declared: TensorShapeProto | None) -> tf.Tensor:
        """The shape that a variable of a loop keeps, in the form of the value."""
        if isinstance(value, TensorList):
            # A list may grow.
            items = tf.TensorShape([None]).concatenate(value.items.shape[1:])
            return TensorList(items, tf.TensorShape([]), value.dtype)
        known = None if declared is None else tf.TensorShape(declared)
        if isinstance(value, Complex):
            return Complex(known or value.real.shape, known or value.imag.shape)
        return value.shape if known is None else known


def _origin(graph: GraphDef, tensor: str) -> str:
    """The tensor that this one is, whatever it is called on the way."""
    nodes = {node.name: node for node in graph.node}
    name, index = _parse(tensor)
    while name in nodes and nodes[name].op == "Identity":
        name, index = _parse(nodes[name].input[0])
    return f"{name}:{index}"


def _parse(tensor: str) -> tuple[str, int]:
    name, _, index = tensor.partition(":")
    return name, int(index or 0)


def emit(node: NodeDef, inputs: Sequence[tf.Tensor], **types: tf.DType) -> tf.Operation:
    """The operation of a node, in TensorFlow's current graph."""
    attributes = {name: value for name, value in node.attr.items() if not name.startswith("_")}
    for name, dtype in types.items():
        attributes[name] = tf.compat.v1.AttrValue(type=dtype.as_datatype_enum)
    return tf.compat.v1.get_default_graph().create_op(node.op, list(inputs), name=node.name, attrs=attributes)
