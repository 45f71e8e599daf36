"""The runtimes that files are reloaded and measured in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from modelyard.lazy import load_attribute

if TYPE_CHECKING:
    from modelyard.export.runtimes._adapted import adapted, computed_of, renamed_of
    from modelyard.export.runtimes._choice import FALLBACK, rank_runtimes
    from modelyard.export.runtimes._latency import main_signature, measure_latency
    from modelyard.export.runtimes._runtimes import (
        Arrays,
        Runtime,
        as_array,
        call_signature,
        load_runtime,
        restored_state,
        run_graph,
        runtime_versions,
        runtimes_of,
        to_tensor,
    )
    from modelyard.export.runtimes._timing import RuntimeEndedError

_MODULES = {
    "Arrays": "modelyard.export.runtimes._runtimes",
    "FALLBACK": "modelyard.export.runtimes._choice",
    "Runtime": "modelyard.export.runtimes._runtimes",
    "RuntimeEndedError": "modelyard.export.runtimes._timing",
    "adapted": "modelyard.export.runtimes._adapted",
    "as_array": "modelyard.export.runtimes._runtimes",
    "call_signature": "modelyard.export.runtimes._runtimes",
    "computed_of": "modelyard.export.runtimes._adapted",
    "load_runtime": "modelyard.export.runtimes._runtimes",
    "main_signature": "modelyard.export.runtimes._latency",
    "measure_latency": "modelyard.export.runtimes._latency",
    "rank_runtimes": "modelyard.export.runtimes._choice",
    "renamed_of": "modelyard.export.runtimes._adapted",
    "restored_state": "modelyard.export.runtimes._runtimes",
    "run_graph": "modelyard.export.runtimes._runtimes",
    "runtime_versions": "modelyard.export.runtimes._runtimes",
    "runtimes_of": "modelyard.export.runtimes._runtimes",
    "to_tensor": "modelyard.export.runtimes._runtimes",
}

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
    "runtime_versions",
    "runtimes_of",
    "to_tensor",
]


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    return load_attribute(__name__, _MODULES, name, extra="export")
