"""The runtimes that files are reloaded and measured in."""

from __future__ import annotations

from typing import TYPE_CHECKING

from modelyard.lazy import attach

if TYPE_CHECKING:
    from modelyard.export.runtimes._choice import FALLBACK, rank_runtimes
    from modelyard.export.runtimes._latency import main_signature, measure_latency, thread_counts
    from modelyard.export.runtimes._runtimes import (
        Arrays,
        Runtime,
        adapted,
        as_array,
        call_signature,
        computed_of,
        load_runtime,
        renamed_of,
        restored_state,
        run_graph,
        runtimes_of,
        to_tensor,
    )
    from modelyard.export.runtimes._timing import RuntimeEndedError

__all__ = [
    "Arrays",
    "FALLBACK",
    "Runtime",
    "RuntimeEndedError",
    "adapted",
    "as_array",
    "call_signature",
    "computed_of",
    "load_runtime",
    "main_signature",
    "measure_latency",
    "rank_runtimes",
    "renamed_of",
    "restored_state",
    "run_graph",
    "runtimes_of",
    "thread_counts",
    "to_tensor",
]

__getattr__, __dir__ = attach(__name__, extra="export")
