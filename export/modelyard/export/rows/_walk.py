"""The proof that the rows of a batch do not depend on each other: a walk over the graph that computes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from tensorflow.python.framework.function_def_to_graph import function_def_to_graph

from modelyard.artifact import RowsCheck
from modelyard.export.rows._rules import is_source, rule_of
from modelyard.export.rows._values import Mixed, Undecided, Value, constant, dims_of, joined, rows
from modelyard.export.sources import is_draw, is_write

if TYPE_CHECKING:
    import tensorflow as tf
    from tensorflow.python.framework.func_graph import FuncGraph
    from tensorflow.python.types.core import PolymorphicFunction

#: Operations that call functions, by the attribute that names the function.
_CALLS = {"PartitionedCall": "f", "StatefulPartitionedCall": "f", "RemoteCall": "f"}
_WHILE, _IF = ("While", "StatelessWhile"), ("If", "StatelessIf")
#: Times that a loop's body is walked until nothing changes any more: each tensor can change twice at most.
_TURNS = 4
#: Functions in functions; the converters' limit is not far above.
_DEPTH = 50


def walk_rows(function: PolymorphicFunction) -> RowsCheck:
    """Shows of a function that every row of its outputs is computed from the same row of its inputs alone."""
    concrete = function.get_concrete_function()
    captured = {id(inside) for inside in concrete.graph.internal_captures}
    inputs = []
    for tensor in concrete.inputs:
        if id(tensor) in captured:
            inputs.append(_captured(tensor))
        elif tensor.shape.rank is None or tensor.shape.rank == 0 or tensor.shape[0] is not None:
            return RowsCheck(verdict="unknown", reason=f"input {tensor.name} has no batch dimension")
        else:
            inputs.append(rows(0, dims_of(tensor)))
    results = _Walk().graph(concrete.graph, inputs)[: len(concrete.structured_outputs)]
    for kind in ("mixed", "unknown"):
        for value in results:
            if value.kind == kind:
                return RowsCheck(verdict="dependent" if kind == "mixed" else "unknown", reason=value.why)
    for name, value in zip(sorted(concrete.structured_outputs), results, strict=False):
        if value.kind != "rows" or value.axis != 0:
            return RowsCheck(verdict="unknown", reason=f"output {name!r} has no row for each of the batch")
    return RowsCheck(verdict="independent", reason="every operation carries the rows one by one")


def _captured(tensor: tf.Tensor) -> Value:
    # Of a variable, what it holds.
    data = getattr(tensor, "_handle_data", None)
    if data is not None and data.is_set and data.shape_and_type:
        shape = data.shape_and_type[0].shape
        return constant(None if shape.unknown_rank else tuple(None if d.size < 0 else d.size for d in shape.dim))
    return constant(dims_of(tensor))


class _Walk:
    """Follows values through graphs and the functions that they call."""

    def __init__(self) -> None:
        self._depth = 0

    def graph(self, graph: FuncGraph, inputs: Sequence[Value]) -> list[Value]:
        """The outputs of a graph."""
        if self._depth >= _DEPTH:
            raise Undecided("functions that call each other without end")
        known = {tensor.name: value for tensor, value in zip(graph.inputs, inputs, strict=True)}
        self._depth += 1
        for op in graph.get_operations():
            if not op.outputs or op.outputs[0].name in known:
                continue
            values = [known.get(tensor.name) or _captured(tensor) for tensor in op.inputs]
            for tensor, value in zip(op.outputs, self._outputs(op, values), strict=True):
                # What TensorFlow knows of a shape is more than what the rules say.
                known[tensor.name] = value if tensor.shape.rank is None else replace(value, dims=dims_of(tensor))
        self._depth -= 1
        return [known.get(tensor.name) or _captured(tensor) for tensor in graph.outputs]

    def _outputs(self, op: tf.Operation, values: Sequence[Value]) -> list[Value]:
        lost = next((each for kind in ("mixed", "unknown") for each in values if each.kind == kind), None)
        place = f"{op.name} ({op.type})"
        if is_draw(op.type):
            lost = Value(kind="mixed", why=f"{place} draws random numbers")
        elif is_write(op.type):
            lost = Value(kind="mixed", why=f"{place} changes a variable")
        try:
            if op.type in _WHILE:
                return self._loop(op, values)
            if lost is not None:
                return [lost] * len(op.outputs)
            if op.type in _CALLS:
                # Where it was differentiated, intermediate values are behind its own outputs.
                return self.graph(_body(op, _CALLS[op.type]), values)[: len(op.outputs)]
            if op.type in _IF:
                return self._branches(op, values)
            if op.type == "IdentityN":
                return list(values)
            if op.type == "ReadVariableOp":
                return [replace(values[0], kind="constant")]
            if all(each.kind == "constant" for each in values) and (values or is_source(op.type)):
                rule = rule_of(op.type) if op.type.startswith("TensorList") else None
                found = constant() if rule is None else rule(op, values)
            elif (rule := rule_of(op.type)) is not None:
                found = rule(op, values)
            else:
                found = Value(kind="unknown", why=f"nothing is known of {place}")
            return found if isinstance(found, list) else [found] * len(op.outputs)
        except Mixed as exc:
            return [Value(kind="mixed", why=f"{place} {exc}")] * len(op.outputs)
        except Undecided as exc:
            return [Value(kind="unknown", why=f"{place}: {exc}")] * len(op.outputs)

    def _branches(self, op: tf.Operation, values: Sequence[Value]) -> list[Value]:
        if values[0].kind != "constant":
            raise Undecided("a condition that depends on the batch")
        branches = [self.graph(_body(op, name), values[1:]) for name in ("then_branch", "else_branch")]
        return [joined(one, other) for one, other in zip(*branches, strict=True)]

    def _loop(self, op: tf.Operation, values: Sequence[Value]) -> list[Value]:
        carried = list(values)
        for _ in range(_TURNS):
            (goes_on,) = self.graph(_body(op, "cond"), carried)
            if goes_on.kind in ("rows", "mixed"):
                raise Mixed("is a loop whose end depends on the rows' numbers")
            if goes_on.kind != "constant":
                raise Undecided("a loop whose end depends on the batch")
            after = self.graph(_body(op, "body"), carried)
            changed = [joined(one, other) for one, other in zip(carried, after, strict=True)]
            if changed == carried:
                return carried
            carried = changed
        raise Undecided("a loop that changes what it carries")


def _body(op: tf.Operation, attribute: str) -> FuncGraph:
    """The graph of a function that an operation calls."""
    name = op.get_attr(attribute).name
    found = op.graph._get_function(name)
    if found is None:
        raise Undecided(f"a function {name} that is not there")
    graph = getattr(found, "graph", None)
    return graph if graph is not None else function_def_to_graph(found.cached_definition)
