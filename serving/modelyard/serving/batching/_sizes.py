"""Batches of a few sizes, for graphs that prepare themselves for each."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from modelyard.serving.batching._sharing import probe
from modelyard.serving.requests import Arrays
from modelyard.serving.servables import Servable

_LOG = logging.getLogger("modelyard.serving")


def in_few_sizes(servable: Servable, max_rows: int) -> Servable:
    """Has graphs that prepare themselves for each shape compute batches of 1, 2, 4 and so on, and prepares them.

    Only graphs whose rows do not depend on each other: what is missing to a size is filled with the first row again,
    and what is beyond the largest is computed in several batches.

    Args:
        servable: A version, with ``row_wise`` decided.
        max_rows: Rows that are computed together at most; the largest size is the power of two that holds them.
    """
    graphs = servable.backend.few_shapes & servable.row_wise
    if not graphs:
        return servable
    most = _size(max_rows)
    compute = servable.compute

    def run(graph: str, inputs: Arrays, outputs: Sequence[str]) -> dict[str, npt.NDArray[Any]]:
        sizes = {len(array) for array in inputs.values() if array.ndim}
        if graph not in graphs or len(sizes) != 1 or not (rows := sizes.pop()):
            return compute(graph, inputs, outputs)
        parts = []
        for start in range(0, rows, most):
            part = {name: array[start : start + most] for name, array in inputs.items()}
            count = min(most, rows - start)
            answer = compute(graph, {name: _filled(array, _size(count)) for name, array in part.items()}, outputs)
            parts.append({name: array[:count] for name, array in answer.items()})
        if len(parts) == 1:
            return parts[0]
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    for graph in sorted(graphs):
        described = servable.backend.signatures[graph]
        known = all(spec.shape is not None and -1 not in spec.shape[1:] for spec in described.inputs)
        batch = probe(described, most) if known else None
        if batch is not None:
            started = time.monotonic()
            outputs = [spec.name for spec in described.outputs]
            for size in (1 << power for power in range(most.bit_length())):
                compute(graph, {name: array[:size] for name, array in batch.items()}, outputs)
            place = f"model {servable.name} version {servable.version}"
            _LOG.info(
                "%s: %r is prepared for batches of 1, 2, 4 and so on to %d rows after %.1f s",
                place, graph, most, time.monotonic() - started,
            )  # fmt: skip
    return replace(servable, compute=run)


def _size(rows: int) -> int:
    """The power of two that holds so many rows."""
    return 1 << (rows - 1).bit_length()


def _filled(array: npt.NDArray[Any], size: int) -> npt.NDArray[Any]:
    missing = size - len(array)
    return array if not missing else np.concatenate([array, np.repeat(array[:1], missing, axis=0)])
