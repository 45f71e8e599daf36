"""What a model is, as a digest: the same in every process, and another one where anything that it computes with is."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

if TYPE_CHECKING:
    from tensorflow.core.framework.attr_value_pb2 import AttrValue
    from tensorflow.core.framework.function_pb2 import FunctionDef
    from tensorflow.core.framework.node_def_pb2 import NodeDef
    from tensorflow.python.types.core import ConcreteFunction

#: Names that TensorFlow counts up in each process, and how it runs what a graph computes.
_NAMES = ("shared_name", "container", "config_proto", "executor_type")


class Digest:
    """Takes values of any kind."""

    def __init__(self) -> None:
        self._sha = hashlib.sha256()

    def add(self, *parts: Any) -> None:
        """Adds values, each apart from the next."""
        for part in parts:
            if isinstance(part, np.ndarray):
                content = repr((part.dtype.str, part.shape)).encode()
                content += repr(part.tolist()).encode() if part.dtype == object else part.tobytes()
            else:
                content = part if isinstance(part, bytes) else repr(part).encode()
            self._sha.update(len(content).to_bytes(8, "big") + content)

    def hex(self) -> str:
        """The digest, shortened."""
        return self._sha.hexdigest()[:24]

    def add_function(self, concrete: ConcreteFunction) -> None:
        """Adds a function: its operations, and the values of its variables, constants and lookup tables."""
        definition = concrete.graph.as_graph_def()
        functions = {each.signature.name: each for each in definition.library.function}
        places = {node.name: index for index, node in enumerate(definition.node)}
        # Behind them are values that a gradient needs, where one was computed.
        outputs = concrete.graph.outputs[: len(tf.nest.flatten(concrete.structured_outputs))]
        self.add(_graph(definition.node, (), functions, {}))
        self.add([(places[tensor.op.name], tensor.value_index) for tensor in outputs], concrete.structured_outputs)
        for variable in concrete.variables:
            self.add(tuple(variable.shape), variable.numpy())
        handles = {id(variable.handle) for variable in concrete.variables}
        captured = [tensor for tensor in concrete.captured_inputs if id(tensor) not in handles]
        for tensor in captured:
            if tensor.dtype not in (tf.resource, tf.variant):
                self.add(tensor.numpy())
        tables = [tensor for tensor in captured if tensor.dtype in (tf.resource, tf.variant)]
        if tables:
            nodes = [*definition.node, *(node for function in functions.values() for node in function.node_def)]
            self._add_tables(tables, nodes)

    def _add_tables(self, handles: Sequence[tf.Tensor], nodes: Iterable[NodeDef]) -> None:
        kinds = {(node.attr["Tin"].type, node.attr["Tout"].type) for node in nodes if node.op == "LookupTableFindV2"}
        if len(kinds) != 1:
            # TensorFlow ends the process where a table has other types: what cannot be read is new in every try.
            self.add(os.urandom(16))
            return
        ((key, value),) = kinds
        for handle in handles:
            content = tf.raw_ops.LookupTableExportV2(table_handle=handle, Tkeys=key, Tvalues=value)
            keys, values = (part.numpy() for part in content)
            order = np.argsort(keys)
            self.add(keys[order], values[order])


def _graph(
    nodes: Sequence[NodeDef], arguments: Sequence[str], functions: Mapping[str, FunctionDef], known: dict[str, bytes]
) -> bytes:
    """The digest of some nodes, by their places and not by their names."""
    places, digest = _places(nodes, arguments), hashlib.sha256()
    for node in nodes:
        inputs = []
        for each in node.input:
            name, _, output = each.removeprefix("^").partition(":")
            inputs.append((each.startswith("^"), places[name], output))
        attributes = [
            (key, _attribute(node.attr[key], functions, known))
            for key in sorted(node.attr)
            if key not in _NAMES and not key.startswith("_")
        ]
        digest.update(repr((node.op, inputs, attributes)).encode())
    return digest.digest()


def _places(nodes: Sequence[NodeDef], arguments: Sequence[str]) -> dict[str, str]:
    places = {name: f"argument {index}" for index, name in enumerate(arguments)}
    return places | {node.name: str(index) for index, node in enumerate(nodes)}


def _attribute(value: AttrValue, functions: Mapping[str, FunctionDef], known: dict[str, bytes]) -> bytes:
    called = [value.func] if value.HasField("func") else list(value.list.func)
    if not called:
        return hashlib.sha256(value.SerializeToString(deterministic=True)).digest()
    return b"".join(_function(each.name, functions, known) for each in called)


def _function(name: str, functions: Mapping[str, FunctionDef], known: dict[str, bytes]) -> bytes:
    if name not in known:
        function = functions[name]
        # Of a function that calls itself.
        known[name] = b"itself"
        arguments = [each.name for each in function.signature.input_arg]
        places = _places(function.node_def, arguments)
        results = [function.ret[each.name].partition(":") for each in function.signature.output_arg]
        returned = [(places[name], output) for name, _, output in results]
        body = _graph(function.node_def, arguments, functions, known)
        known[name] = hashlib.sha256(body + repr(returned).encode()).digest()
    return known[name]
