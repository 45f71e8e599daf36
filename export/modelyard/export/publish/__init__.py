"""From a model to a published version: ``export``, ``export_task``, and the action of a training run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from modelyard.lazy import attach

if TYPE_CHECKING:
    from modelyard.export.publish._action import BestExport, action
    from modelyard.export.publish._api import export
    from modelyard.export.publish._options import (
        FORMATS,
        LIBRARIES,
        PRECISIONS,
        RUNTIMES,
        Budget,
        ExportEvent,
        ExportOptions,
        ExportReport,
        Format,
        Library,
        Precision,
        Progress,
        ignore_progress,
    )
    from modelyard.export.publish._task import export_task

__all__ = [
    "BestExport",
    "Budget",
    "ExportEvent",
    "ExportOptions",
    "ExportReport",
    "FORMATS",
    "Format",
    "LIBRARIES",
    "Library",
    "PRECISIONS",
    "Precision",
    "Progress",
    "RUNTIMES",
    "action",
    "export",
    "export_task",
    "ignore_progress",
]

__getattr__, __dir__ = attach(__name__, extra="export")
