"""Finds the operations of a SavedModel's graph that change its state, without TensorFlow."""

from __future__ import annotations

import re
from collections.abc import Iterable

from modelyard.wire import tensorflow_pb2

_CHANGES_STATE = re.compile(
    r"Assign|Apply|SparseApply|CountUpTo|StridedSliceAssign|Resource(Sparse)?Apply|ResourceCountUpTo|ResourceScatter"
    r"|ResourceStridedSliceAssign|Scatter(Add|Sub|Mul|Div|Min|Max|Update|Nd(Add|Sub|Min|Max|Update))$"
    r"|LookupTable(Insert|Import|Remove)|Rng|Stateful(Random|StandardNormal|TruncatedNormal|Uniform)|Queue|Stack(Push|Pop)|Stage|Unstage|Barrier|Iterator"
)


def state_changes(graph: tensorflow_pb2.MetaGraphDef, outputs: Iterable[str]) -> tuple[str, ...]:
    """The kinds of operations that change variables, tables or the like, and that output tensors depend on.

    Where there are none, calls with the same inputs have the same outputs, but for random numbers.
    """
    definition = graph.graph_def
    nodes = {node.name: node for node in definition.node}
    functions = {each.signature.name: each.node_def for each in definition.library.function}
    found: set[str] = set()
    called: set[str] = set()
    seen: set[str] = set()
    names = [_node_name(output) for output in outputs]
    while names:
        name = names.pop()
        if name in seen or name not in nodes:
            continue
        seen.add(name)
        names += map(_node_name, nodes[name].input)
        # Down into the functions that the node calls.
        waiting = [nodes[name]]
        while waiting:
            node = waiting.pop()
            if _CHANGES_STATE.match(node.op):
                found.add(node.op)
            for function in _functions(node):
                if function in functions and function not in called:
                    called.add(function)
                    waiting += functions[function]
    return tuple(sorted(found))


def _functions(node: tensorflow_pb2.NodeDef) -> list[str]:
    # TF1 calls a function by using its name as the operation's.
    attributes = [function.name for each in node.attr.values() for function in (each.func, *each.list.func)]
    return [node.op, *attributes]


def _node_name(tensor: str) -> str:
    return tensor.removeprefix("^").split(":")[0]
