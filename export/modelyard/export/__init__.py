"""The export room: from a live model to verified, published formats.

Importing it is cheap: TensorFlow comes in with the first name that needs it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from modelyard.export.publish import (
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
from modelyard.export.verification import Verification, WorstExample
from modelyard.lazy import load_attribute

if TYPE_CHECKING:
    from modelyard.console import ProgressBar
    from modelyard.export.publish import BestExport, action, export, export_task
    from modelyard.export.sources import Reference, TracedModel, check_examples, compute_reference, load_data, trace
    from modelyard.export.verification import verify

_LAZY = {
    "BestExport": "modelyard.export.publish",
    "ProgressBar": "modelyard.console",
    "Reference": "modelyard.export.sources",
    "TracedModel": "modelyard.export.sources",
    "action": "modelyard.export.publish",
    "check_examples": "modelyard.export.sources",
    "compute_reference": "modelyard.export.sources",
    "export": "modelyard.export.publish",
    "export_task": "modelyard.export.publish",
    "load_data": "modelyard.export.sources",
    "trace": "modelyard.export.sources",
    "verify": "modelyard.export.verification",
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
