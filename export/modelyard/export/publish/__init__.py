"""From a model to a published version: ``export``, ``export_task``, and the action of a training run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from modelyard.lazy import load_attribute

if TYPE_CHECKING:
    from modelyard.export.publish._action import BestExport, action
    from modelyard.export.publish._api import export
    from modelyard.export.publish._options import (
        FORMATS,
        PRECISIONS,
        RUNTIMES,
        Budget,
        ExportEvent,
        ExportOptions,
        ExportReport,
        Format,
        Precision,
        Progress,
        ignore_progress,
    )
    from modelyard.export.publish._task import export_task

_MODULES = {
    "BestExport": "modelyard.export.publish._action",
    "Budget": "modelyard.export.publish._options",
    "ExportEvent": "modelyard.export.publish._options",
    "ExportOptions": "modelyard.export.publish._options",
    "ExportReport": "modelyard.export.publish._options",
    "FORMATS": "modelyard.export.publish._options",
    "Format": "modelyard.export.publish._options",
    "PRECISIONS": "modelyard.export.publish._options",
    "Precision": "modelyard.export.publish._options",
    "Progress": "modelyard.export.publish._options",
    "RUNTIMES": "modelyard.export.publish._options",
    "action": "modelyard.export.publish._action",
    "export": "modelyard.export.publish._api",
    "export_task": "modelyard.export.publish._task",
    "ignore_progress": "modelyard.export.publish._options",
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
    "RUNTIMES",
    "action",
    "export",
    "export_task",
    "ignore_progress",
]


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    return load_attribute(__name__, _MODULES, name, extra="export")
