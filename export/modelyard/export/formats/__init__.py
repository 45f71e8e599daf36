"""SavedModel, ONNX and TFLite: how each is made."""

from __future__ import annotations

from typing import TYPE_CHECKING

from modelyard.lazy import attach

if TYPE_CHECKING:
    from modelyard.export.formats._apart import Apart
    from modelyard.export.formats._failures import LOG_VARIABLE, gist, keep_log, say_logs
    from modelyard.export.formats._formats import FormatMaker, make_maker
    from modelyard.export.formats._freeze import (
        LARGE,
        ROUNDING,
        forget_initializers,
        freeze,
        named,
        only_draws,
        widened_dtypes,
    )
    from modelyard.export.formats._onnx import export_onnx, newest_opset
    from modelyard.export.formats._resume import Conversions
    from modelyard.export.formats._saved_model import export_saved_model
    from modelyard.export.formats._tf2onnx import convert_function
    from modelyard.export.formats._tflite import export_tflite

__all__ = [
    "Apart",
    "Conversions",
    "FormatMaker",
    "LARGE",
    "LOG_VARIABLE",
    "ROUNDING",
    "convert_function",
    "export_onnx",
    "export_saved_model",
    "export_tflite",
    "forget_initializers",
    "freeze",
    "gist",
    "keep_log",
    "make_maker",
    "named",
    "newest_opset",
    "only_draws",
    "say_logs",
    "widened_dtypes",
]

__getattr__, __dir__ = attach(__name__, extra="export")
