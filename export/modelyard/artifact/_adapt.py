"""Where a file cannot have the names or dtypes of a signature: what stands in it instead."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy.typing as npt

from modelyard.artifact._signature import ExampleDecode, Signature, TensorSpec
from modelyard.wire import dtype_by_name

Arrays = Mapping[str, npt.NDArray[Any]]


def renamed_outputs(signature: Signature) -> dict[str, str]:
    """Names in an ONNX graph of the outputs that are called as an input is: a value has one name there."""
    taken = {spec.name for spec in (*signature.inputs, *signature.outputs)}
    renamed: dict[str, str] = {}
    for name in sorted({spec.name for spec in signature.inputs} & {spec.name for spec in signature.outputs}):
        candidate = f"{name}_output"
        while candidate in taken:
            candidate += "_"
        renamed[name] = candidate
        taken.add(candidate)
    return renamed


def computing_signatures(signatures: Mapping[str, Signature]) -> dict[str, Signature]:
    """What the batched graphs of a version take and give, by name, from the signatures of its manifest."""
    graphs: dict[str, Signature] = {}
    for signature in signatures.values():
        if signature.decode is None:
            graphs[signature.compute] = signature
        elif isinstance(signature.decode, ExampleDecode):
            inputs = tuple(feature.tensor for feature in signature.decode.features)
            graphs[signature.compute] = replace(signature, inputs=inputs, decode=None)
    return graphs


class GraphAdapter:
    """Between a signature and its graph in a file.

    Args:
        described: What the graph takes and gives, as the signature says.
        graph: The same as the file says.
        renamed: By name in the signature, the other name of an output in the file.
        computed: By dtype that the file lacks, the one in its place.

    Attributes:
        signature: The graph, with the names and the dtypes of the signature.
    """

    def __init__(
        self, described: Signature, graph: Signature, *, renamed: Mapping[str, str], computed: Mapping[str, str]
    ) -> None:
        self._renamed = renamed
        names = {value: name for name, value in renamed.items()}
        outputs = tuple(replace(spec, name=names.get(spec.name, spec.name)) for spec in graph.outputs)
        inside = {spec.name: spec.dtype for spec in graph.inputs}
        wanted = {spec.name: spec.dtype for spec in described.inputs}
        self.signature = replace(
            graph,
            inputs=tuple(_with_dtype(spec, wanted, computed) for spec in graph.inputs),
            outputs=tuple(
                _with_dtype(spec, {each.name: each.dtype for each in described.outputs}, computed) for spec in outputs
            ),
        )
        self._inputs = {
            spec.name: dtype_by_name(inside[spec.name]).numpy
            for spec in self.signature.inputs
            if spec.dtype != inside[spec.name]
        }
        self._outputs = {
            spec.name: dtype_by_name(spec.dtype).numpy
            for spec, given in zip(self.signature.outputs, outputs, strict=True)
            if spec.dtype != given.dtype
        }

    @property
    def is_needed(self) -> bool:
        """Whether anything differs."""
        return bool(self._renamed or self._inputs or self._outputs)

    def feeds(self, inputs: Arrays) -> Arrays:
        """Inputs of the graph from those of the signature."""
        if not self._inputs:
            return inputs
        return {
            name: values.astype(self._inputs[name]) if name in self._inputs else values
            for name, values in inputs.items()
        }

    def fetched(self, name: str) -> str:
        """The name in the file of an output of the signature."""
        return self._renamed.get(name, name)

    def answer(self, name: str, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """An output as the signature has it, from its values in the file."""
        return values.astype(self._outputs[name]) if name in self._outputs else values


def _with_dtype(spec: TensorSpec, wanted: Mapping[str, str], computed: Mapping[str, str]) -> TensorSpec:
    dtype = wanted.get(spec.name, spec.dtype)
    return replace(spec, dtype=dtype) if computed.get(dtype) == spec.dtype else spec
