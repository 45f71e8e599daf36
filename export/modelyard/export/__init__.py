"""The export room: from a live model to verified, published formats.

Importing it is cheap: TensorFlow comes in with the first name that needs it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from modelyard.export._options import (
    FORMATS,
    PRECISIONS,
    Budget,
    ExportEvent,
    ExportOptions,
    ExportReport,
    Format,
    Precision,
    Progress,
)
from modelyard.export._verification import Verification, WorstExample
from modelyard.lazy import load_attribute

if TYPE_CHECKING:
    from modelyard.console import ProgressBar
    from modelyard.export._action import BestExport, action
    from modelyard.export._api import export
    from modelyard.export._data import load_data
    from modelyard.export._reference import Reference, check_examples, compute_reference
    from modelyard.export._task import export_task
    from modelyard.export._trace import TracedModel, trace
    from modelyard.export._verify import verify

_LAZY = {
    "BestExport": "modelyard.export._action",
    "ProgressBar": "modelyard.console",
    "Reference": "modelyard.export._reference",
    "TracedModel": "modelyard.export._trace",
    "action": "modelyard.export._action",
    "check_examples": "modelyard.export._reference",
    "compute_reference": "modelyard.export._reference",
    "export": "modelyard.export._api",
    "export_task": "modelyard.export._task",
    "load_data": "modelyard.export._data",
    "trace": "modelyard.export._trace",
    "verify": "modelyard.export._verify",
}
__all__ = [
    "BestExport",
    "Budget",
    "ExportEvent",
    "ExportOptions",
    "ExportReport",
    "FORMATS",
    "Format",
    "PRECISIONS",
    "Precision",
    "Progress",
    "ProgressBar",
    "Reference",
    "TracedModel",
    "Verification",
    "WorstExample",
    "action",
    "check_examples",
    "compute_reference",
    "export",
    "export_task",
    "load_data",
    "trace",
    "verify",
]


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    return load_attribute(__name__, _LAZY, name, extra="export")
