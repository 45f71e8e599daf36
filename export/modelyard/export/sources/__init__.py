"""What is exported: models of any origin, traced, with examples and the answers that formats are held to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from modelyard.lazy import load_attribute

if TYPE_CHECKING:
    from modelyard.export.sources._data import FLOATS, RANDOM, Score, fit_examples, load_data, tells_class
    from modelyard.export.sources._determinism import is_draw, is_write, restored, written_variables
    from modelyard.export.sources._files import FILE_FORMATS, copy_file, load_file, weight_files
    from modelyard.export.sources._foreign import LoadedModel, load_saved_model
    from modelyard.export.sources._lengths import by_shape
    from modelyard.export.sources._reference import (
        Reference,
        batches,
        check_examples,
        compute_own_reference,
        compute_reference,
        draw_size,
        is_constant,
        join,
        runtime_call,
        score,
        source_call,
        split,
    )
    from modelyard.export.sources._text import check_graphs, check_text
    from modelyard.export.sources._trace import TracedModel, graph_signature, trace

_MODULES = {
    "FILE_FORMATS": "modelyard.export.sources._files",
    "FLOATS": "modelyard.export.sources._data",
    "LoadedModel": "modelyard.export.sources._foreign",
    "RANDOM": "modelyard.export.sources._data",
    "Reference": "modelyard.export.sources._reference",
    "Score": "modelyard.export.sources._data",
    "TracedModel": "modelyard.export.sources._trace",
    "batches": "modelyard.export.sources._reference",
    "by_shape": "modelyard.export.sources._lengths",
    "check_examples": "modelyard.export.sources._reference",
    "check_graphs": "modelyard.export.sources._text",
    "check_text": "modelyard.export.sources._text",
    "compute_own_reference": "modelyard.export.sources._reference",
    "compute_reference": "modelyard.export.sources._reference",
    "copy_file": "modelyard.export.sources._files",
    "draw_size": "modelyard.export.sources._reference",
    "fit_examples": "modelyard.export.sources._data",
    "graph_signature": "modelyard.export.sources._trace",
    "is_constant": "modelyard.export.sources._reference",
    "is_draw": "modelyard.export.sources._determinism",
    "is_write": "modelyard.export.sources._determinism",
    "join": "modelyard.export.sources._reference",
    "load_data": "modelyard.export.sources._data",
    "load_file": "modelyard.export.sources._files",
    "load_saved_model": "modelyard.export.sources._foreign",
    "restored": "modelyard.export.sources._determinism",
    "runtime_call": "modelyard.export.sources._reference",
    "score": "modelyard.export.sources._reference",
    "source_call": "modelyard.export.sources._reference",
    "split": "modelyard.export.sources._reference",
    "tells_class": "modelyard.export.sources._data",
    "trace": "modelyard.export.sources._trace",
    "weight_files": "modelyard.export.sources._files",
    "written_variables": "modelyard.export.sources._determinism",
}

__all__ = [
    "FILE_FORMATS",
    "FLOATS",
    "LoadedModel",
    "RANDOM",
    "Reference",
    "Score",
    "TracedModel",
    "batches",
    "by_shape",
    "check_examples",
    "check_graphs",
    "check_text",
    "compute_own_reference",
    "compute_reference",
    "copy_file",
    "draw_size",
    "fit_examples",
    "graph_signature",
    "is_constant",
    "is_draw",
    "is_write",
    "join",
    "load_data",
    "load_file",
    "load_saved_model",
    "restored",
    "runtime_call",
    "score",
    "source_call",
    "split",
    "tells_class",
    "trace",
    "weight_files",
    "written_variables",
]


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    return load_attribute(__name__, _MODULES, name, extra="export")
