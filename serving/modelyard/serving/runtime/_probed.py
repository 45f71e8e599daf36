"""The process of a probe: ``python -m modelyard.serving.runtime._probed JSON``; its answer is a line of JSON."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from modelyard.artifact import Signature, TrustedKey
from modelyard.console import quiet_libraries
from modelyard.errors import LoadError, ModelyardError
from modelyard.serving.batching import shared_graphs
from modelyard.serving.config import LoadOptions
from modelyard.serving.machine import free_bytes
from modelyard.serving.metrics import Metrics
from modelyard.serving.prediction import warm_up
from modelyard.serving.servables import Servable, load_servable
from modelyard.wire import dtype_by_name

#: Serving goes first.
_NICENESS = 5
_NO_MEMORY = re.compile(r"alloc|out of memory|\boom\b", re.IGNORECASE)
_LONGEST_MESSAGE = 4000


def main(text: str) -> None:
    """Tries a version, writes what was found, and ends the process."""
    answers = os.fdopen(os.dup(1), "w")
    # What runtimes print is no answer.
    os.dup2(2, 1)
    threading.Thread(target=_end_with_the_server, daemon=True).start()
    quiet_libraries()
    logging.basicConfig(level=logging.WARNING)
    os.nice(_NICENESS)
    job = json.loads(text)
    _limit_memory(job["memory_bytes"])
    try:
        _try(job)
    except ModelyardError as exc:
        found: dict[str, object] = {"error": type(exc).__name__, "message": exc.message[:_LONGEST_MESSAGE]}
    except MemoryError:
        found = {"error": "LoadError", "message": "There is not enough memory to load it."}
    else:
        found = {"peak_bytes": _peak_bytes()}
    print(json.dumps(found), file=answers, flush=True)  # noqa: T201  # the answer
    # What a runtime does at the end of a process is no matter for the server, which goes on.
    os._exit(0)


def _try(job: dict[str, Any]) -> None:
    load = job["load"]
    options = LoadOptions(
        **{
            **load,
            "tags": tuple(load["tags"]),
            "trusted_keys": tuple(TrustedKey(**key) for key in load["trusted_keys"]),
        }
    )
    servable = load_servable(job["name"], job["version"], Path(job["path"]), options)
    if job["warmup_iterations"]:
        warm_up(servable, iterations=job["warmup_iterations"], metrics=Metrics())
    if job["experiment"]:
        shared_graphs(servable)
    for name, signature in servable.signatures.items():
        for rows in (0, 1):
            _predict(servable, name, signature, rows)
    servable.close()


def _predict(servable: Servable, name: str, signature: Signature, rows: int) -> None:
    graph = servable.backend.signatures.get(signature.compute)
    inputs = None if graph is None else _zeros(graph, rows)
    if inputs is None:
        return
    try:
        servable.compute(signature.compute, inputs, [spec.name for spec in signature.outputs])
    except ModelyardError as exc:
        # A model may refuse rows of zeros; but the memory that it needs for one row, it will need.
        if rows and _NO_MEMORY.search(exc.message):
            raise LoadError(f"Signature {name!r} has not enough memory for one row: {exc.message}") from exc


def _zeros(graph: Signature, rows: int) -> dict[str, npt.NDArray[Any]] | None:
    """A batch that the graph may take; None where its inputs are of any rank, or of a fixed batch without a row."""
    inputs: dict[str, npt.NDArray[Any]] = {}
    for spec in graph.inputs:
        if spec.shape is None or (rows == 0 and spec.shape[:1] != (-1,)):
            return None
        sizes = [max(1, size) for size in spec.shape]
        if spec.shape[:1] == (-1,):
            sizes[0] = rows
        dtype = dtype_by_name(spec.dtype).numpy
        inputs[spec.name] = (
            np.full(sizes, b"", object) if dtype is None or dtype.kind == "O" else np.zeros(sizes, dtype)
        )
    return inputs


def _end_with_the_server() -> None:
    # Not by a buffered reader: where Python ends by an error, it would abort over this thread, and the error be lost.
    while os.read(0, 1):
        pass
    os._exit(1)


def _limit_memory(limit: int) -> None:
    if sys.platform != "linux":
        return
    import resource

    # Writable memory of this process alone: addresses that runtimes only reserve, and files, do not count. What it has
    # by now is not in what is left.
    limit = limit or free_bytes() + _data_bytes()
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # If memory ends all the same, the kernel is to end this process, and no other.
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


def _data_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[5]) * os.sysconf("SC_PAGE_SIZE")


def _peak_bytes() -> int:
    if sys.platform == "win32":
        return 0
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak << 10


if __name__ == "__main__":
    main(sys.argv[1])
