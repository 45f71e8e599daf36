"""Random numbers in a graph that is frozen: drawn by the runtime, where TensorFlow kept count in a variable.

Keras and ``tf.random.Generator`` keep the state of a generator in a variable, and draw by functions of that state,
which no converter knows; frozen, it would be one constant, and the draws would always be the same. What is drawn from a
variable is drawn by an operation instead that keeps a state of its own, which both converters know. What is drawn from
anything else stays as it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import tensorflow as tf

from modelyard.export.rewrites import all_nodes
from modelyard.export.sources import node_name

if TYPE_CHECKING:
    from onnx import GraphProto
    from tensorflow.core.framework.graph_pb2 import GraphDef
    from tensorflow.core.framework.node_def_pb2 import NodeDef

#: By function of a state, the operation that draws the same by itself, and the inputs that it keeps.
_DRAWN: Mapping[str, tuple[str, tuple[int, ...]]] = {
    "StatelessMultinomial": ("Multinomial", (0, 1)),
    "StatelessRandomNormal": ("RandomStandardNormal", (0,)),
    "StatelessRandomNormalV2": ("RandomStandardNormal", (0,)),
    "StatelessRandomUniform": ("RandomUniform", (0,)),
    "StatelessRandomUniformIntV2": ("RandomUniformInt", (0, 4, 5)),
    "StatelessRandomUniformV2": ("RandomUniform", (0,)),
    "StatelessTruncatedNormal": ("TruncatedNormal", (0,)),
    "StatelessTruncatedNormalV2": ("TruncatedNormal", (0,)),
}
_SEEDED = frozenset(operation for operation, _ in _DRAWN.values())
_SHAPED = {"Tshape": "T", "shape_dtype": "T", "dtype": "dtype", "output_dtype": "output_dtype", "T": "T"}
#: What operations that write to a variable begin with.
WRITES = ("Assign", "RngReadAndSkip", "RngSkip")


def release_draws(graph: GraphDef, outputs: list[str]) -> None:
    """Rewrites a graph before its variables become constants.

    Seeds are given up, too: LiteRT begins a seeded stream anew with every other batch size.
    """
    for node in all_nodes(graph):
        if node.op in _SEEDED:
            node.attr["seed"].i = node.attr["seed2"].i = 0
    nodes = {node.name: node for node in graph.node}
    states: set[str] = set()
    for node in [each for each in graph.node if each.op in _DRAWN]:
        operation, kept = _DRAWN[node.op]
        seeds = [name for index, name in enumerate(node.input) if index not in kept and not name.startswith("^")]
        found = {each.name for each in _before(seeds, nodes) if _is_resource(each)}
        if found:
            states |= found
            _rewrite(node, operation, kept)
    if not states:
        return
    if any(node.name in states for node in _before(outputs, nodes)):
        # Something else reads the state, too: then it cannot be given up.
        return
    gone = {
        node.name
        for node in graph.node
        if node.op.startswith(WRITES) and any(each.name in states for each in _before(list(node.input)[:1], nodes))
    }
    while more := {node.name for node in graph.node if node.name not in gone and _reads(node, gone)}:
        gone |= more
    left = [node for node in graph.node if node.name not in gone]
    for node in left:
        # No value comes from there any more, only an order.
        inputs = [name for name in node.input if node_name(name) not in gone]
        del node.input[:]
        node.input.extend(inputs)
    copies = [tf.compat.v1.NodeDef.FromString(node.SerializeToString()) for node in left]
    del graph.node[:]
    graph.node.extend(copies)


def _rewrite(node: NodeDef, operation: str, kept: tuple[int, ...]) -> None:
    inputs = [node.input[index] for index in kept]
    attributes = {new: node.attr[old] for old, new in _SHAPED.items() if old in node.attr}
    attributes = {name: type(value).FromString(value.SerializeToString()) for name, value in attributes.items()}
    if operation == "RandomUniformInt":
        attributes = {"T": attributes["T"], "Tout": attributes["dtype"]}
    node.op = operation
    del node.input[:]
    node.input.extend(inputs)
    node.attr.clear()
    for name, value in attributes.items():
        node.attr[name].CopyFrom(value)


def _before(names: list[str], nodes: Mapping[str, NodeDef]) -> Iterator[NodeDef]:
    """The nodes that tensors are computed from."""
    todo, seen = list(names), set()
    while todo:
        name = node_name(todo.pop())
        if name in seen or name not in nodes:
            continue
        seen.add(name)
        yield nodes[name]
        todo += [each for each in nodes[name].input if not each.startswith("^")]


def _is_resource(node: NodeDef) -> bool:
    return node.op == "Placeholder" and node.attr["dtype"].type == tf.resource.as_datatype_enum


def _reads(node: NodeDef, names: set[str]) -> bool:
    """Whether a node takes a value from one of some nodes."""
    return any(node_name(each) in names for each in node.input if not each.startswith("^"))


def forget_seeds(graph: GraphProto) -> None:
    """Removes the seed 0 from random operators of ONNX: in TensorFlow it says that there is none.

    tf2onnx writes it, and onnxruntime takes it for one: every operator of a
    graph, and every server, would draw the same numbers in the same order.
    """
    for node in graph.node:
        for each in [each for each in node.attribute if each.HasField("g")]:
            forget_seeds(each.g)
        if node.op_type.startswith(("Random", "Multinomial", "Bernoulli")):
            seeds = [each for each in node.attribute if each.name == "seed" and not each.f]
            for each in seeds:
                node.attribute.remove(each)
