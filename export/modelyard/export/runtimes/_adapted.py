"""Runtimes whose files have other names or dtypes than the signatures: seen as the signatures are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy.typing as npt

from modelyard.artifact import GraphAdapter, Signature, renamed_outputs
from modelyard.export.formats import widened_dtypes
from modelyard.export.runtimes._runtimes import Arrays, Runtime
from modelyard.export.sources import TracedModel, graph_signature


def renamed_of(source: TracedModel, format: str) -> dict[str, dict[str, str]]:
    """By graph, the outputs that have other names in the files of a format.

    Args:
        source: The traced model.
        format: Such as ``onnx``.
    """
    if format != "onnx" or format in source.files:
        return {}
    found = {graph: renamed_outputs(graph_signature(source, graph)) for graph in source.graphs}
    return {graph: names for graph, names in found.items() if names}


def computed_of(source: TracedModel, format: str) -> dict[str, str]:
    """By dtype of the model, the one that the files of a format have in its place.

    Args:
        source: The traced model.
        format: Such as ``onnx``.
    """
    if format in source.files:
        return {}
    found = (widened_dtypes(function, format) for function in source.graphs.values())
    return {dtype: "float32" for dtypes in found for dtype in sorted(dtypes)}


def adapted(runtime: Runtime, source: TracedModel, format: str) -> Runtime:
    """A reloaded format with the names and dtypes of the signatures.

    Args:
        runtime: The format.
        source: The traced model.
        format: Its name.
    """
    described = {graph: graph_signature(source, graph) for graph in source.graphs}
    return adapt(runtime, described, renamed_of(source, format), computed_of(source, format))


def adapt(
    runtime: Runtime,
    described: Mapping[str, Signature],
    renamed: Mapping[str, Mapping[str, str]],
    computed: Mapping[str, str],
) -> Runtime:
    """The same where the traced model is not at hand.

    Args:
        runtime: The format.
        described: The model's graphs.
        renamed: From :func:`renamed_of`.
        computed: From :func:`computed_of`.
    """
    if not renamed and not computed:
        return runtime
    adapters = {
        name: GraphAdapter(described[name], graph, renamed=renamed.get(name, {}), computed=computed)
        for name, graph in runtime.graphs.items()
        if name in described
    }
    return _Adapted(runtime, adapters)


class _Adapted:
    def __init__(self, runtime: Runtime, adapters: Mapping[str, GraphAdapter]) -> None:
        self.name, self.package, self.threads = runtime.name, runtime.package, runtime.threads
        self.decodes = runtime.decodes
        self.graphs: Mapping[str, Signature] = {
            **runtime.graphs,
            **{name: each.signature for name, each in adapters.items()},
        }
        self._runtime, self._adapters = runtime, adapters

    def run(self, graph: str, inputs: Arrays) -> dict[str, npt.NDArray[Any]]:
        adapter = self._adapters[graph]
        values = self._runtime.run(graph, adapter.feeds(inputs))
        names = [spec.name for spec in self.graphs[graph].outputs]
        return {name: adapter.answer(name, values[adapter.fetched(name)]) for name in names}
