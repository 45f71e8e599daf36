"""What exporter and server both know of runtimes: the same settings, the same graphs, the same answers."""

from modelyard.artifact.runtimes._onnxruntime import (
    disable_telemetry,
    onnx_options,
    onnx_signature,
    operator_domains,
)
from modelyard.artifact.runtimes._openvino import (
    OPENVINO_DTYPES,
    copy_openvino,
    integer_limit,
    lookup_sizes,
    openvino_core,
    openvino_settings,
    openvino_spec,
)
from modelyard.artifact.runtimes._openvino_checks import prepare_openvino
from modelyard.artifact.runtimes._tflite import TfliteModel, tflite_has_state
from modelyard.artifact.runtimes._tflite_checks import prepare_tflite

__all__ = [
    "OPENVINO_DTYPES",
    "TfliteModel",
    "copy_openvino",
    "disable_telemetry",
    "integer_limit",
    "lookup_sizes",
    "onnx_options",
    "onnx_signature",
    "openvino_core",
    "openvino_settings",
    "openvino_spec",
    "operator_domains",
    "prepare_openvino",
    "prepare_tflite",
    "tflite_has_state",
]
