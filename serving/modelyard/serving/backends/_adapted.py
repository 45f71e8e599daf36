"""A backend whose files have other names or dtypes than the signatures, seen as the signatures are."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy.typing as npt

from modelyard.artifact import FormatEntry, GraphAdapter, Signature, computing_signatures
from modelyard.serving.backends._base import Arrays, Backend


def adapt(backend: Backend, signatures: Mapping[str, Signature], entry: FormatEntry) -> Backend:
    """The backend with what its format's entry says between files and signatures."""
    if not entry.renamed and not entry.computed:
        return backend
    described = computing_signatures(signatures)
    adapters = {
        name: GraphAdapter(described[name], graph, renamed=entry.renamed.get(name, {}), computed=entry.computed)
        for name, graph in backend.signatures.items()
        if name in described
    }
    return _Adapted(backend, {name: each for name, each in adapters.items() if each.is_needed})


class _Adapted:
    def __init__(self, backend: Backend, adapters: Mapping[str, GraphAdapter]) -> None:
        self.name, self.checks_shapes = backend.name, backend.checks_shapes
        self.computes_in_caller, self.on_device = backend.computes_in_caller, backend.on_device
        self.few_shapes = backend.few_shapes
        self._backend, self._adapters = backend, adapters
        self.signatures: Mapping[str, Signature] = {
            **backend.signatures,
            **{name: each.signature for name, each in adapters.items()},
        }

    def run(self, graph: str, inputs: Arrays, outputs: Sequence[str]) -> dict[str, npt.NDArray[Any]]:
        adapter = self._adapters.get(graph)
        if adapter is None:
            return self._backend.run(graph, inputs, outputs)
        values = self._backend.run(graph, adapter.feeds(inputs), [adapter.fetched(name) for name in outputs])
        return {name: adapter.answer(name, values[adapter.fetched(name)]) for name in outputs}

    def interrupt(self, threads: Collection[int] | None = None) -> bool:
        return self._backend.interrupt(threads)

    def close(self) -> None:
        self._backend.close()
