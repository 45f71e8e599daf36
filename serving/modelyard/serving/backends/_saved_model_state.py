"""Finds the operations of a SavedModel's graph that change its state, without TensorFlow.

The wire package's protos stop at signatures; the graph below them is walked as
plain fields, by the numbers in TensorFlow's ``graph.proto``, ``node_def.proto``,
``attr_value.proto`` and ``function.proto``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from google.protobuf.empty_pb2 import Empty
from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet

from modelyard.wire import tensorflow_pb2

_CHANGES_STATE = re.compile(
    r"Assign|Apply|SparseApply|CountUpTo|StridedSliceAssign|Resource(Sparse)?Apply|ResourceCountUpTo|ResourceScatter"
    r"|ResourceStridedSliceAssign|Scatter(Add|Sub|Mul|Div|Min|Max|Update|Nd(Add|Sub|Min|Max|Update))$"
    r"|LookupTable(Insert|Import|Remove)|Rng|Stateful(Random|StandardNormal|TruncatedNormal|Uniform)|Queue|Stack(Push|Pop)|Stage|Unstage|Barrier|Iterator"
)

# Field numbers.
_META_GRAPH_GRAPH = 2
_GRAPH_NODE, _GRAPH_LIBRARY = 1, 2
_LIBRARY_FUNCTION = 1
_FUNCTION_SIGNATURE, _FUNCTION_NODE = 1, 3
_NODE_NAME, _NODE_OP, _NODE_INPUT, _NODE_ATTR = 1, 2, 3, 5
_ATTR_ENTRY_VALUE = 2
_ATTR_LIST, _ATTR_FUNCTION, _LIST_FUNCTION = 1, 10, 9
_NAME = 1


@dataclass
class _Node:
    name: str = ""
    op: str = ""
    inputs: list[str] = field(default_factory=list)
    functions: list[str] = field(default_factory=list)


def state_changes(graph: tensorflow_pb2.MetaGraphDef, outputs: Iterable[str]) -> tuple[str, ...]:
    """Which operations that an output depends on change variables, tables or the like.

    Args:
        graph: The meta graph, as :func:`read_meta_graph` returns it.
        outputs: Names of the output tensors, such as ``StatefulPartitionedCall:0``.

    Returns:
        Their kinds, sorted; empty where every call with the same inputs gives
        the same outputs, but for random numbers.
    """
    nodes: dict[str, _Node] = {}
    functions: dict[str, list[_Node]] = {}
    for definition in _each(graph, _META_GRAPH_GRAPH):
        nodes.update((node.name, node) for node in _nodes(definition, _GRAPH_NODE))
        for library in _each(_fields(definition), _GRAPH_LIBRARY):
            for function in _each(_fields(library), _LIBRARY_FUNCTION):
                parts = _fields(function)
                for signature in _each(parts, _FUNCTION_SIGNATURE):
                    functions[_text(signature)] = list(_nodes(function, _FUNCTION_NODE))
    found: set[str] = set()
    seen: set[str] = set()
    waiting = [nodes[name] for output in outputs if (name := _node_name(output)) in nodes]
    called: set[str] = set()
    while waiting:
        node = waiting.pop()
        if node.name in seen:
            continue
        seen.add(node.name)
        waiting += [nodes[name] for each in node.inputs if (name := _node_name(each)) in nodes]
        found |= _changes([node], functions, called)
    return tuple(sorted(found))


def _changes(nodes: Iterable[_Node], functions: dict[str, list[_Node]], called: set[str]) -> set[str]:
    """State changes in nodes and, all the way down, in the functions that they call."""
    found: set[str] = set()
    waiting = list(nodes)
    while waiting:
        node = waiting.pop()
        if _CHANGES_STATE.match(node.op):
            found.add(node.op)
        # TF1 calls a function by using its name as the operation's.
        for name in (node.op, *node.functions):
            if name in functions and name not in called:
                called.add(name)
                waiting += functions[name]
    return found


def _nodes(parent: bytes, number: int) -> Iterator[_Node]:
    for data in _each(_fields(parent), number):
        node = _Node()
        attributes = []
        for key, value in _items(_fields(data)):
            if key == _NODE_NAME:
                node.name = value.decode()
            elif key == _NODE_OP:
                node.op = value.decode()
            elif key == _NODE_INPUT:
                node.inputs.append(value.decode())
            elif key == _NODE_ATTR:
                attributes.append(value)
        # A constant's attributes are its weights.
        if node.op != "Const":
            node.functions = [name for attribute in attributes for name in _called(attribute)]
        yield node


def _called(attribute: bytes) -> Iterator[str]:
    """Names of the functions in one entry of a node's attributes."""
    for value in _each(_fields(attribute), _ATTR_ENTRY_VALUE):
        parts = _fields(value)
        for function in _each(parts, _ATTR_FUNCTION):
            yield _text(function)
        for items in _each(parts, _ATTR_LIST):
            for function in _each(_fields(items), _LIST_FUNCTION):
                yield _text(function)


def _text(message: bytes) -> str:
    return next((data.decode() for data in _each(_fields(message), _NAME)), "")


def _node_name(tensor: str) -> str:
    return tensor.removeprefix("^").split(":")[0]


def _fields(data: bytes) -> Message:
    return Empty.FromString(data)


def _each(message: Message, number: int) -> Iterator[bytes]:
    return (data for key, data in _items(message) if key == number)


def _items(message: Message) -> Iterator[tuple[int, bytes]]:
    """The fields that hold bytes, text or messages, by number."""
    fields = UnknownFieldSet(message)
    for index in range(len(fields)):
        item = fields[index]
        if isinstance(item.data, bytes):
            yield item.field_number, item.data
