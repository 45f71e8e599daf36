"""A TFLite file cut down to one graph."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np

from modelyard.errors import ConfigurationError

_METADATA = "TFLITE_METADATA"


class Graph:
    """One signature of a TFLite file, with the graph that computes it.

    MediaPipe takes files of one graph only, and reads each of its outputs as scores.

    Args:
        content: The file.
        key: Name of the signature.

    Attributes:
        inputs: Names of the signature's inputs, in the graph's order.
        outputs: Those of its outputs.

    Raises:
        ConfigurationError: The file has no such signature, or its graph calls others.
    """

    def __init__(self, content: bytes, key: str) -> None:
        from ai_edge_litert import schema_py_generated as schema

        self._schema = schema
        self._model: Any = schema.ModelT.InitFromPackedBuf(content, 0)
        signatures = {each.signatureKey.decode(): each for each in self._model.signatureDefs or ()}
        if key not in signatures:
            raise ConfigurationError(
                f"The TFLite file has no signature {key!r}; it has {', '.join(sorted(signatures)) or 'none'}."
            )
        self._signature = signatures[key]
        self._graph: Any = self._model.subgraphs[self._signature.subgraphIndex]
        calls = sorted({self._kind(each) for each in self._graph.operators if _calls_graphs(each)})
        if calls:
            raise ConfigurationError(
                f"The graph of signature {key!r} has {', '.join(calls)}, which call other graphs; a bundle holds one."
            )
        self._inputs = {each.tensorIndex: each.name.decode() for each in self._signature.inputs}
        self._outputs = {each.tensorIndex: each.name.decode() for each in self._signature.outputs}
        self.inputs = [self._inputs[index] for index in self._graph.inputs]
        self.outputs = [self._outputs[index] for index in self._graph.outputs]

    def class_names(self) -> list[list[str]]:
        """The tables of strings that an output is looked up in, as the output ``label`` of a classifier is."""
        found = []
        for operator in self._graph.operators:
            if self._kind(operator) == "GATHER" and operator.outputs[0] in self._outputs:
                table = self._graph.tensors[operator.inputs[0]]
                if table.type == self._schema.TensorType.STRING and len(table.shape) == 1:
                    found.append(_strings(self._model.buffers[table.buffer].data))
        return [names for names in found if names]

    def pack(self, outputs: Sequence[str], metadata: bytes) -> bytes:
        """The file with this graph alone, as far as it computes these outputs, and with metadata."""
        import flatbuffers

        schema, model, graph = self._schema, self._model, self._graph
        graph.outputs = np.array([index for index in graph.outputs if self._outputs[index] in outputs], np.int32)
        self._signature.outputs = [each for each in self._signature.outputs if each.name.decode() in outputs]
        self._signature.subgraphIndex = 0
        graph.operators = _needed(graph)
        model.subgraphs, model.signatureDefs = [graph], [self._signature]
        model.metadata = [each for each in model.metadata or () if each.name.decode() != _METADATA]
        used = {each.buffer for each in (*graph.tensors, *model.metadata)}
        for index, buffer in enumerate(model.buffers):
            if index not in used:
                buffer.data = None
        # Lookups of labels, which nobody asks for any more, are among what is not needed.
        touched = {index for each in graph.operators for index in each.inputs}
        for index, tensor in enumerate(graph.tensors):
            if index not in touched and index not in graph.outputs and index not in graph.inputs:
                model.buffers[tensor.buffer].data = None
        buffer, entry = schema.BufferT(), schema.MetadataT()
        buffer.data = np.frombuffer(metadata, np.uint8)
        model.buffers.append(buffer)
        entry.name, entry.buffer = _METADATA, len(model.buffers) - 1
        model.metadata.append(entry)
        builder = flatbuffers.Builder()
        builder.Finish(model.Pack(builder), file_identifier=b"TFL3")
        return bytes(builder.Output())

    def _kind(self, operator: Any) -> str:
        entry = self._model.operatorCodes[operator.opcodeIndex]
        # Files of before TensorFlow 2.4 have the other one.
        code = max(entry.builtinCode, entry.deprecatedBuiltinCode)
        kinds: dict[str, object] = vars(self._schema.BuiltinOperator)
        return next(name for name, value in kinds.items() if value == code)


def _calls_graphs(operator: Any) -> bool:
    options = (operator.builtinOptions, operator.builtinOptions2)
    return any("subgraph" in name.lower() for each in options if each is not None for name in vars(each))


def _needed(graph: Any) -> list[Any]:
    """The operators that the outputs come from; what has no output, such as a write of state, stays."""
    wanted, kept = {*graph.outputs}, []
    for operator in reversed(graph.operators):
        if len(operator.outputs) == 0 or not wanted.isdisjoint(operator.outputs):
            wanted |= {*operator.inputs}
            kept.append(operator)
    return kept[::-1]


def _strings(data: Any) -> list[str]:
    """The strings of a buffer, as TFLite packs them: how many, where each begins and the last ends, the bytes."""
    if data is None or len(data) == 0:
        return []
    content = bytes(data)
    (count,) = struct.unpack_from("<i", content)
    places = struct.unpack_from(f"<{count + 1}i", content, 4)
    return [content[begin:end].decode() for begin, end in zip(places, places[1:], strict=False)]
