"""The export room: from a live model to verified, published formats.

Importing it is cheap: TensorFlow comes in with the first name that needs it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

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
from modelyard.lazy import attach

if TYPE_CHECKING:
    from modelyard.console import ProgressBar
    from modelyard.export.publish import BestExport, action, export, export_task
    from modelyard.export.sources import Reference, TracedModel, check_examples, compute_reference, load_data, trace
    from modelyard.export.verification import verify

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

__getattr__, __dir__ = attach(__name__, extra="export")
