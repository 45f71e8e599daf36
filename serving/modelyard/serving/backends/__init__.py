"""Backends: one loaded model version in one runtime."""

from modelyard.serving.backends._adapted import adapt
from modelyard.serving.backends._base import Arrays, Backend
from modelyard.serving.backends._litert import LitertBackend
from modelyard.serving.backends._onnxruntime import OnnxRuntimeBackend
from modelyard.serving.backends._openvino import OpenVinoBackend
from modelyard.serving.backends._saved_model import SAVED_MODEL_NAME, read_meta_graph
from modelyard.serving.backends._saved_model_state import state_changes
from modelyard.serving.backends._tensorflow import TensorFlowBackend

__all__ = [
    "Arrays",
    "Backend",
    "LitertBackend",
    "OnnxRuntimeBackend",
    "OpenVinoBackend",
    "SAVED_MODEL_NAME",
    "TensorFlowBackend",
    "adapt",
    "read_meta_graph",
    "state_changes",
]
