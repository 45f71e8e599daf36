"""Backends: one loaded model version in one runtime."""

from modelyard.serving.backends._adapted import adapt
from modelyard.serving.backends._base import Arrays, Backend
from modelyard.serving.backends._devices import CPU, device_runtime, read_device
from modelyard.serving.backends._files import NoRoomError, check_room
from modelyard.serving.backends._litert import LitertBackend
from modelyard.serving.backends._onnxruntime import OnnxRuntimeBackend
from modelyard.serving.backends._openvino import OpenVinoBackend
from modelyard.serving.backends._runtimes import (
    RUNTIME_FILES,
    RUNTIME_FORMATS,
    RUNTIMES,
    TRITON_ONNX,
    TRITON_SAVED_MODEL,
    Runtime,
    available_runtimes,
    is_installed,
    missing_runtime,
    onnx_graphs,
    saved_model_of,
)
from modelyard.serving.backends._saved_model import SAVED_MODEL_NAME, read_meta_graph
from modelyard.serving.backends._saved_model_state import state_changes
from modelyard.serving.backends._tensorflow import TensorFlowBackend

__all__ = [
    "Arrays",
    "Backend",
    "CPU",
    "LitertBackend",
    "NoRoomError",
    "OnnxRuntimeBackend",
    "OpenVinoBackend",
    "RUNTIMES",
    "RUNTIME_FILES",
    "RUNTIME_FORMATS",
    "Runtime",
    "SAVED_MODEL_NAME",
    "TRITON_ONNX",
    "TRITON_SAVED_MODEL",
    "TensorFlowBackend",
    "adapt",
    "available_runtimes",
    "check_room",
    "device_runtime",
    "is_installed",
    "missing_runtime",
    "onnx_graphs",
    "read_device",
    "read_meta_graph",
    "saved_model_of",
    "state_changes",
]
