"""Which graphs of a version compute the requests of several callers together."""

from __future__ import annotations

import logging
import time
from typing import Any

import numpy as np
import numpy.typing as npt

from modelyard.artifact import EXPERIMENT_ROWS, Signature, row_experiment, within
from modelyard.errors import ModelyardError
from modelyard.serving.backends import Backend
from modelyard.serving.requests import Arrays
from modelyard.serving.servables import Servable
from modelyard.wire import dtype_by_name

_LOG = logging.getLogger("modelyard.serving")

#: Rows of the batch that is timed: with fewer, noise hides what is saved; with more, loading takes longer.
_PROBE_ROWS = 8
#: A model that takes longer for a row is not tried: loading waits for it, and what a call costs besides is little.
_PATIENCE_S = 0.1
#: A batch must save at least so much of the time: its first row waits for its last.
_WORTH_IT = 0.95
_TRIES = 5
#: Seconds of an experiment: a loop that waits for numbers to converge may have no end for some.
_LIMIT_S = 20.0


def shared_graphs(servable: Servable) -> frozenset[str]:
    """Decides which graphs share batches, and logs why.

    What an export has shown counts. Of anything else an experiment decides, see
    :func:`modelyard.artifact.row_experiment`, and whether a batch is faster.
    """
    shared = set()
    said = []
    for graph in sorted({signature.compute for signature in servable.signatures.values()}):
        names = [name for name, signature in servable.signatures.items() if signature.compute == graph]
        checks = [] if servable.rows is None else [servable.rows[name] for name in names if name in servable.rows]
        verdicts = {each.verdict for each in checks} if len(checks) == len(names) else {"unknown"}
        reason, how = "", "as was proven at export"
        if any(servable.signatures[name].stateful for name in names):
            # To try it would change it.
            reason = "it keeps state"
        elif any(servable.signatures[name].unbatched for name in names):
            reason = "its first dimensions are no batch"
        elif "dependent" in {each.verdict for each in checks}:
            reason = next(each.reason for each in checks if each.verdict == "dependent")
        elif not servable.check_shapes:
            reason = "nothing says which shapes it takes"
        elif verdicts != {"independent"}:
            reason, how = _limited_probe(servable.backend, graph), "as an experiment shows"
        elif servable.gainless & set(names):
            reason = "its batches were no faster at export"
        shared |= set() if reason else {graph}
        said.append(f"{graph!r} {'apart: ' + reason if reason else 'together, ' + how}")
    place = f"model {servable.name} version {servable.version}"
    _LOG.info("%s computes the requests of several callers: %s", place, "; ".join(said))
    return frozenset(shared)


def _limited_probe(backend: Backend, graph: str) -> str:
    """As :func:`_probe`, on a thread that is not waited for beyond a limit."""
    try:
        return within(_LIMIT_S, lambda: _probe(backend, graph))
    except TimeoutError:
        ended = "it was ended" if backend.interrupt() else "its thread goes on"
        return f"an experiment took longer than {_LIMIT_S:g} s ({ended}): a loop may have no end for some inputs"


def _probe(backend: Backend, graph: str) -> str:
    """Why requests for a graph should not share batches; empty where they should."""
    described = backend.signatures.get(graph)
    batch = None if described is None else probe(described, _PROBE_ROWS)
    if described is None or batch is None:
        return "rows cannot be told apart, or are no numbers"
    outputs = [spec.name for spec in described.outputs]
    # Time of other threads on the processor must not count.
    clock = time.thread_time if backend.computes_in_caller else time.perf_counter

    def run(inputs: Arrays) -> dict[str, npt.NDArray[Any]]:
        return backend.run(graph, dict(inputs), outputs)

    def seconds(rows: int) -> float:
        inputs = {name: array[:rows] for name, array in batch.items()}
        started = clock()
        run(inputs)
        return clock() - started

    try:
        # Many runtimes prepare something in the first call.
        first = seconds(1)
        if first > _PATIENCE_S and (first > 10 * _PATIENCE_S or seconds(1) > _PATIENCE_S):
            return f"a row takes {first:.2f} s"
        if seen := row_experiment(run, {name: array[:EXPERIMENT_ROWS] for name, array in batch.items()}):
            return f"seen now: {seen}"
        # What disturbs makes everything slower: the fastest try of each size counts. They take turns, as under load:
        # some runtimes prepare themselves anew for each size.
        tries = [(seconds(1), seconds(_PROBE_ROWS)) for _ in range(_TRIES)]
    except ModelyardError as exc:
        return f"it refuses random numbers: {exc.message}"
    alone, together = (min(column) for column in zip(*tries, strict=True))
    return "" if together < _PROBE_ROWS * alone * _WORTH_IT else "a batch is no faster"


def probe(described: Signature, rows: int) -> dict[str, npt.NDArray[Any]] | None:
    """Arrays by input name that any model of this signature may take.

    None where rows cannot be told apart, or are no numbers.
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
