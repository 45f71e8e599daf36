"""What is exported: models of any origin, traced, with examples and the answers that formats are held to."""

from __future__ import annotations

from typing import TYPE_CHECKING

from modelyard.lazy import attach

if TYPE_CHECKING:
    from modelyard.export.sources._calls import batches, draw_size, join, runtime_call, source_call, split
    from modelyard.export.sources._checks import check_examples, is_constant
    from modelyard.export.sources._data import FLOATS, RANDOM, Score, fit_examples, load_data, tells_class
    from modelyard.export.sources._determinism import is_draw, is_write, restored, written_variables
    from modelyard.export.sources._files import FILE_FORMATS, copy_file, load_file, model_path, weight_files
    from modelyard.export.sources._foreign import LoadedModel, load_saved_model
    from modelyard.export.sources._lengths import by_shape
    from modelyard.export.sources._libraries import convert_library, library_of, library_signatures
    from modelyard.export.sources._named import list_inputs, name_arrays
    from modelyard.export.sources._reference import (
        Reference,
        compute_own_reference,
        compute_reference,
        score,
    )
    from modelyard.export.sources._saved_files import SAVED_MODEL_PARTS, node_name
    from modelyard.export.sources._text import check_graphs, check_text
    from modelyard.export.sources._trace import TracedModel, as_spec, graph_signature, trace

__all__ = [
    "FILE_FORMATS",
    "FLOATS",
    "LoadedModel",
    "RANDOM",
    "Reference",
    "SAVED_MODEL_PARTS",
    "Score",
    "TracedModel",
    "as_spec",
    "batches",
    "by_shape",
    "check_examples",
    "check_graphs",
    "check_text",
    "compute_own_reference",
    "compute_reference",
    "convert_library",
    "copy_file",
    "draw_size",
    "fit_examples",
    "graph_signature",
    "is_constant",
    "is_draw",
    "is_write",
    "join",
    "library_of",
    "library_signatures",
    "list_inputs",
    "load_data",
    "load_file",
    "load_saved_model",
    "model_path",
    "name_arrays",
    "node_name",
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

__getattr__, __dir__ = attach(__name__, extra="export")
