"""What batches gain: found out when a model is loaded, by computing rows together and apart."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from modelyard.artifact import Signature
from modelyard.errors import ModelyardError
from modelyard.serving._requests import Arrays
from modelyard.serving._servable import Compute, Servable
from modelyard.serving.backends import Backend
from modelyard.wire import dtype_by_name

#: Rows of the batch that shows whether rows depend on each other, and smaller sizes that may be better.
_PROBE_ROWS = 8
_SIZES = (8, 4, 2, 1)
#: A model that takes longer for a row is not tried, and one that took ten times as long is not asked again.
_PATIENCE_S = 0.1
#: Sizes are tried in rounds: the more, the less a model takes, since loading waits for it. So many while they took less
#: than so many seconds.
_ROUNDS = ((3, 0.1), (30, 0.03))
#: A batch, or a piece of one, must save at least so much of the time.
_WORTH_IT = 0.95
#: What a piece costs besides: cutting the inputs, and putting the outputs together.
_PIECE_S = 5e-5
#: Runtimes round differently at different batch sizes; a model that mixes its rows is off by much more.
_PROBE_TOLERANCE = 1e-3

#: Seconds for each row of a batch of so many.
_RowSeconds = Callable[[int], float]


@dataclass(frozen=True, kw_only=True)
class BatchGains:
    """What batches gain, of each graph for which they gain anything.

    Attributes:
        shared: Graphs whose rows do not depend on each other, and that compute
            several of them faster together: requests may share batches.
        pieces: Rows that are computed together at most, of graphs whose rows do
            not depend on each other, and that compute more of them slower.
        fixed: Of the graphs that share, what part of the time for one row (0
            to 1) a batch takes whatever it holds.
    """

    shared: frozenset[str]
    pieces: Mapping[str, int]
    fixed: Mapping[str, float] = field(default_factory=dict, compare=False)


def batch_gains(servable: Servable) -> BatchGains:
    """Finds out what batches gain.

    Nothing else than such an experiment tells: a model may normalise over the
    batch, or draw random numbers; a runtime may prepare itself anew for each
    size of batch, which takes longer than the batch; and what a large batch
    computes between its layers may not fit the processor's cache.

    Args:
        servable: A version that was just loaded.
    """
    # To try what has state would change it.
    stateful = {signature.compute for signature in servable.signatures.values() if signature.stateful}
    graphs = {signature.compute for signature in servable.signatures.values() if signature.decode is None} - stateful
    found = {graph: _try(servable.backend, graph) for graph in graphs if servable.check_shapes}
    return BatchGains(
        shared=frozenset(graph for graph, gain in found.items() if gain.shared),
        pieces={graph: gain.pieces for graph, gain in found.items() if gain.pieces},
        fixed={graph: gain.fixed for graph, gain in found.items() if gain.shared},
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
        # Of one size as far as possible: some runtimes prepare themselves anew for each.
        count = -(-rows // most)
        parts = []
        for index in range(count):
            start, stop = rows * index // count, rows * (index + 1) // count
            part = compute(graph, {name: array[start:stop] for name, array in inputs.items()}, outputs)
            if any(part[name].shape[:1] != (stop - start,) for name in outputs):
                # Against its description it does not answer row by row.
                return compute(graph, inputs, outputs)
            parts.append(part)
        return {name: np.concatenate([part[name] for part in parts]) for name in outputs}

    return run


class _Gain(NamedTuple):
    """What batches gain, of one graph: as in :class:`BatchGains`, with 0 for pieces of any number of rows."""

    shared: bool = False
    pieces: int = 0
    fixed: float = 0.0


def _try(backend: Backend, graph: str) -> _Gain:
    """What batches of a graph gain; nothing where that cannot be found out."""
    described = backend.signatures.get(graph)
    batch = None if described is None else probe(described, _PROBE_ROWS)
    if described is None or batch is None:
        return _Gain()
    for array in batch.values():
        # Rows that are alike have answers of their own, too.
        array[-1] = array[0]
    outputs = [spec.name for spec in described.outputs]
    # Whoever shares the processor with this thread must not decide.
    clock = time.thread_time if backend.computes_in_caller else time.perf_counter

    def run(start: int, stop: int) -> dict[str, npt.NDArray[Any]]:
        return backend.run(graph, {name: array[start:stop] for name, array in batch.items()}, outputs)

    def row_seconds(rows: int) -> float:
        started = clock()
        run(0, rows)
        return (clock() - started) / rows

    try:
        # Many runtimes prepare something in the first call.
        first = row_seconds(1)
        if first > _PATIENCE_S and (first > 10 * _PATIENCE_S or row_seconds(1) > _PATIENCE_S):
            # A model that takes so long for a row gains nothing, and loading must not wait for it.
            return _Gain()
        together = run(0, _PROBE_ROWS)
        alone = []
        for row in range(_PROBE_ROWS):
            started = clock()
            answer = run(row, row + 1)
            alone.append(clock() - started)
            if not all(_equal(together[name][row : row + 1], answer[name]) for name in outputs):
                return _Gain()
        # By the clock on the wall, more tries would find more undisturbed ones: then all sizes have as many.
        return _compare(described, alone if backend.computes_in_caller else (), row_seconds)
    except ModelyardError:
        # It does not take these numbers, so nothing is known of it: its requests are computed as they come.
        return _Gain()


def _compare(described: Signature, alone: Sequence[float], row_seconds: _RowSeconds) -> _Gain:
    """What :func:`_try` says of a graph whose rows do not depend on each other, and took so long alone.

    What disturbs makes everything slower: the fastest try of each size counts.
    """
    #: By size, what a row takes in the first batch of that size after others, as under load, and in the next one, as
    #: where a client sends one large request after the other.
    changed: dict[int, list[float]] = {rows: [] for rows in _SIZES}
    steady: dict[int, list[float]] = {rows: [] for rows in _SIZES}
    spent = 0.0
    while not steady[1] or any(len(steady[1]) < most and spent < seconds for most, seconds in _ROUNDS):
        for rows in _SIZES:
            changed[rows].append(row_seconds(rows))
            steady[rows].append(row_seconds(rows))
            spent += rows * (changed[rows][-1] + steady[rows][-1])
    steady[1].extend(alone)
    least = {rows: min(seconds) for rows, seconds in steady.items()}
    specs = [*described.inputs, *described.outputs]
    pieces = 0
    # Of another size it may gain something else, and rows that are apart may have answers of different sizes.
    if not any(size == -1 for spec in specs for size in (spec.shape or ())[1:]):
        best = min(_SIZES, key=lambda rows: least[rows])
        pieces = best if least[best] + _PIECE_S / best < least[_PROBE_ROWS] * _WORTH_IT else 0
    if pieces == 1:
        return _Gain(pieces=pieces)
    sizes = (pieces,) if pieces else (_PROBE_ROWS, _PROBE_ROWS // 2)
    shared = min(min(changed[rows]) for rows in sizes) < least[1] * _WORTH_IT
    # By a line through both: what each row takes after the first.
    each = max(0.0, (least[pieces or _PROBE_ROWS] * _PROBE_ROWS - least[1]) / (_PROBE_ROWS - 1))
    return _Gain(shared, pieces, max(0.0, 1 - each / least[1]) if least[1] else 0.0)


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
