"""What callers give and get: arrays, images, files, results."""

from modelyard.clients.values._files import IMAGES, SourceRow, count_rows, image_input, is_image_file, read_rows
from modelyard.clients.values._images import read_bytes
from modelyard.clients.values._inputs import check_inputs, check_outputs, needs_signature, to_arrays, wire_array
from modelyard.clients.values._numbers import array_json, plain_value
from modelyard.clients.values._results import (
    Classification,
    ClassScore,
    InferenceTask,
    ModelConfig,
    ModelMetadata,
    ModelStatus,
    Prediction,
    Regression,
    SignatureInfo,
    TensorInfo,
    VersionState,
    VersionStatus,
)

__all__ = [
    "ClassScore",
    "Classification",
    "IMAGES",
    "InferenceTask",
    "ModelConfig",
    "ModelMetadata",
    "ModelStatus",
    "Prediction",
    "Regression",
    "SignatureInfo",
    "SourceRow",
    "TensorInfo",
    "VersionState",
    "VersionStatus",
    "array_json",
    "check_inputs",
    "check_outputs",
    "count_rows",
    "image_input",
    "is_image_file",
    "needs_signature",
    "plain_value",
    "read_bytes",
    "read_rows",
    "to_arrays",
    "wire_array",
]
