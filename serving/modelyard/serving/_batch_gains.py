"""What batches gain: found out when a model is loaded, by computing rows together and apart."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from modelyard.artifact import Signature
from modelyard.errors import ModelyardError
from modelyard.serving._requests import Arrays
from modelyard.serving._servable import Compute, Servable
from modelyard.wire import dtype_by_name

#: Rows of the batch that shows whether rows depend on each other.
_PROBE_ROWS = 8
_PROBE_PATIENCE_S = 0.1
#: A batch, or a piece of one, must save at least so much of the time.
_WORTH_IT = 0.95
#: Runtimes round differently at different batch sizes; a model that mixes its rows is off by much more.
_PROBE_TOLERANCE = 1e-3


@dataclass(frozen=True, kw_only=True)
class BatchGains:
    """What batches gain, of each graph for which they gain anything.

    Attributes:
        shared: Graphs whose rows do not depend on each other, and that compute
            several of them faster together: requests may share batches.
        pieces: Rows that are computed together at most, of graphs whose rows do
            not depend on each other, and that compute fewer of them faster.
    """

    shared: frozenset[str]
    pieces: Mapping[str, int]


def batch_gains(servable: Servable) -> BatchGains:
    """Finds out what batches gain.

    Nothing else than such an experiment tells: a model may normalise over the
    batch, or draw random numbers; a runtime may prepare itself anew for each
    size of batch, which takes longer than the batch; and what a large batch
    computes between its layers may not fit the processor's cache.

    Args:
        servable: A version that was just loaded.
    """
    graphs = {signature.compute for signature in servable.signatures.values() if signature.decode is None}
    best = {graph: _best_rows(servable, graph) for graph in graphs if servable.check_shapes}
    return BatchGains(
        shared=frozenset(graph for graph, rows in best.items() if rows == _PROBE_ROWS),
        pieces={graph: rows for graph, rows in best.items() if 0 < rows < _PROBE_ROWS},
    )


def in_pieces(compute: Compute, pieces: Mapping[str, int]) -> Compute:
    """Computes large batches a few rows at a time.

    Args:
        compute: Computes a batch.
        pieces: Rows that are computed together at most, by graph; those of any
            other graph are computed as they come.
    """

    def run(graph: str, inputs: Arrays, outputs: Sequence[str]) -> dict[str, npt.NDArray[Any]]:
        most = pieces.get(graph)
        sizes = {len(array) for array in inputs.values()} if most is not None else set()
        # A model that broadcasts takes inputs of different sizes, too: they cannot be cut alike.
        rows = sizes.pop() if len(sizes) == 1 else 0
        if most is None or rows <= most:
            return compute(graph, inputs, outputs)
        parts = [
            compute(graph, {name: array[start : start + most] for name, array in inputs.items()}, outputs)
            for start in range(0, rows, most)
        ]
        return {name: np.concatenate([part[name] for part in parts]) for name in outputs}

    return run


def _best_rows(servable: Servable, graph: str) -> int:
    """Rows of which a graph computes the most in a given time; 0 where they depend on each other, or nothing gains."""
    described = servable.backend.signatures.get(graph)
    batch = None if described is None else probe(described, _PROBE_ROWS)
    if described is None or batch is None:
        return 0
    outputs = [spec.name for spec in described.outputs]

    def run(start: int, stop: int) -> tuple[dict[str, npt.NDArray[Any]], float]:
        started = time.perf_counter()
        part = {name: array[start:stop] for name, array in batch.items()}
        return servable.backend.run(graph, part, outputs), (time.perf_counter() - started) / (stop - start)

    try:
        # Many runtimes prepare something in the first call.
        if run(0, 1)[1] > _PROBE_PATIENCE_S and run(0, 1)[1] > _PROBE_PATIENCE_S:
            # A model that takes so long for a row gains nothing, and loading must not wait for it.
            return 0
        together, _ = run(0, _PROBE_ROWS)
        apart = [run(row, row + 1) for row in range(_PROBE_ROWS)]
        for row, (alone, _) in enumerate(apart):
            if not all(_equal(together[name][row : row + 1], alone[name]) for name in outputs):
                return 0
        single = min(seconds for _, seconds in apart)
        return _fastest(described, single, lambda rows: run(0, rows)[1])
    except ModelyardError:
        # It does not take these numbers, so nothing is known of it: its requests are computed as they come.
        return 0


def _fastest(described: Signature, single: float, row_seconds: Callable[[int], float]) -> int:
    half = _PROBE_ROWS // 2
    # Sizes alternate, as they do under load.
    seconds = {1: [single], _PROBE_ROWS: [], half: []}
    for rows in (_PROBE_ROWS, half) * 2:
        seconds[rows].append(row_seconds(rows))
    if min(seconds[_PROBE_ROWS] + seconds[half]) < single * _WORTH_IT:
        return _PROBE_ROWS
    specs = [*described.inputs, *described.outputs]
    if any(size == -1 for spec in specs for size in (spec.shape or ())[1:]):
        # Of another size it may gain something else, and rows that are apart may have answers of different sizes.
        return 0
    # A client that sends large requests sends one after the other: now a size may get used to.
    for rows in (half, 2, 2, _PROBE_ROWS, _PROBE_ROWS):
        seconds.setdefault(rows, []).append(row_seconds(rows))
    best = min(seconds, key=lambda rows: min(seconds[rows]))
    return best if min(seconds[best]) < min(seconds[_PROBE_ROWS]) * _WORTH_IT else 0


def probe(described: Signature, rows: int) -> dict[str, npt.NDArray[Any]] | None:
    """Inputs that any model of this signature may take.

    Args:
        described: The signature.
        rows: How many rows.

    Returns:
        Arrays by input name; None where rows cannot be told apart, or are no numbers.
    """
    rng = np.random.default_rng(0)
    batch: dict[str, npt.NDArray[Any]] = {}
    if not described.inputs or any(not spec.shape or spec.shape[0] != -1 for spec in described.outputs):
        return None
    for spec in described.inputs:
        dtype = dtype_by_name(spec.dtype).numpy
        if not spec.shape or spec.shape[0] != -1 or dtype is None or dtype.kind not in "fiub":
            return None
        # Small numbers are valid for whatever integers index.
        values = rng.random((rows, *(max(1, size) for size in spec.shape[1:])))
        batch[spec.name] = values.astype(dtype) if dtype.kind == "f" else (values > 0.5).astype(dtype)
    return batch


def _equal(one: npt.NDArray[Any], other: npt.NDArray[Any]) -> bool:
    if one.shape != other.shape:
        return False
    if one.dtype.kind == "f":
        return bool(np.allclose(one, other, rtol=_PROBE_TOLERANCE, atol=_PROBE_TOLERANCE * 0.1, equal_nan=True))
    return bool(np.array_equal(one, other))
