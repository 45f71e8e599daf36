"""SavedModel, ONNX and TFLite: how each is made."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from modelyard.lazy import load_attribute

if TYPE_CHECKING:
    from modelyard.export.formats._apart import Apart
    from modelyard.export.formats._failures import LOG_VARIABLE, gist, keep_log, say_logs
    from modelyard.export.formats._formats import FormatMaker, make_maker
    from modelyard.export.formats._freeze import forget_initializers, named, only_draws
    from modelyard.export.formats._resume import Conversions
    from modelyard.export.formats._widen import ROUNDING, widened_dtypes

_MODULES = {
    "Apart": "modelyard.export.formats._apart",
    "Conversions": "modelyard.export.formats._resume",
    "FormatMaker": "modelyard.export.formats._formats",
    "LOG_VARIABLE": "modelyard.export.formats._failures",
    "ROUNDING": "modelyard.export.formats._widen",
    "forget_initializers": "modelyard.export.formats._freeze",
    "gist": "modelyard.export.formats._failures",
    "keep_log": "modelyard.export.formats._failures",
    "make_maker": "modelyard.export.formats._formats",
    "named": "modelyard.export.formats._freeze",
    "only_draws": "modelyard.export.formats._freeze",
    "say_logs": "modelyard.export.formats._failures",
    "widened_dtypes": "modelyard.export.formats._widen",
}

__all__ = [
    "Apart",
    "Conversions",
    "FormatMaker",
    "LOG_VARIABLE",
    "ROUNDING",
    "forget_initializers",
    "gist",
    "keep_log",
    "make_maker",
    "named",
    "only_draws",
    "say_logs",
    "widened_dtypes",
]


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    return load_attribute(__name__, _MODULES, name, extra="export")
