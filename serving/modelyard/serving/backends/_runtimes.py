"""Runtimes: what each reads, and which of them a version has files for."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from modelyard.artifact import DEFAULT_SIGNATURE, ONNX_FOLDER, format_path, onnx_files
from modelyard.errors import MissingDependencyError
from modelyard.serving.backends._saved_model import is_saved_model

Runtime = Literal["onnxruntime", "litert", "openvino", "tensorflow"]
RUNTIMES: tuple[Runtime, ...] = ("onnxruntime", "litert", "openvino", "tensorflow")

#: The package that each runtime needs.
_PACKAGES: Mapping[Runtime, str] = {
    "onnxruntime": "onnxruntime",
    "litert": "ai_edge_litert",
    "openvino": "openvino",
    "tensorflow": "tensorflow",
}


#: What each runtime reads.
RUNTIME_FILES: Mapping[Runtime, str] = {
    "onnxruntime": "ONNX graphs",
    "litert": "a TFLite model",
    "openvino": "ONNX graphs or a SavedModel",
    "tensorflow": "a SavedModel",
}
#: The format that each runtime reads; OpenVINO also a SavedModel.
RUNTIME_FORMATS: Mapping[Runtime, str] = {
    "onnxruntime": "onnx",
    "litert": "tflite",
    "openvino": "onnx",
    "tensorflow": "saved_model",
}
#: Where Triton's repositories have a version's files, beside TensorFlow Serving's ``model.tflite``.
TRITON_ONNX, TRITON_SAVED_MODEL = "model.onnx", "model.savedmodel"


def available_runtimes(path: Path) -> tuple[Runtime, ...]:
    """The runtimes for which a version directory holds a file, best first.

    OpenVINO comes last: it is there for those who ask for it.
    """
    found: list[Runtime] = []
    # Variants of other precision count: a version may have nothing else.
    folder = path / ONNX_FOLDER
    if _has_file(folder, "*.onnx") or _has_file(folder, "*/*.onnx") or (path / TRITON_ONNX).exists():
        found.append("onnxruntime")
    if _has_file(path, "model*.tflite"):
        found.append("litert")
    saved_model = saved_model_of(path)
    if saved_model is not None:
        found.append("tensorflow")
    if "onnxruntime" in found or (saved_model is not None and is_saved_model(saved_model, as_text=False)):
        found.append("openvino")
    return tuple(found)


def _has_file(folder: Path, pattern: str) -> bool:
    return any(each.is_file() for each in folder.glob(pattern))


def saved_model_of(path: Path) -> Path | None:
    places = (path, path / TRITON_SAVED_MODEL)
    return next((place for place in places if is_saved_model(place)), None)


def is_installed(runtime: Runtime) -> bool:
    return importlib.util.find_spec(_PACKAGES[runtime]) is not None


def missing_runtime(path: Path, runtime: Runtime, others: Sequence[Runtime]) -> MissingDependencyError:
    """The error for a runtime that is not installed; ``others`` are, and could serve the version."""
    instead = ""
    if others:
        instead = f"without that, {' or '.join(others)} can serve it"
    elif runtime == "tensorflow":
        instead = (
            "or serve it with OpenVINO (pip install 'modelyard[openvino]', and --runtime=openvino); or export it with "
            "modelyard export, to ONNX and TFLite files that need neither"
        )
    return MissingDependencyError(
        package=_PACKAGES[runtime],
        extra=runtime if runtime in ("openvino", "tensorflow") else "serving",
        purpose=f"Serving {RUNTIME_FILES[runtime]} from {path} with {runtime}",
        instead=instead,
    )


def onnx_graphs(path: Path, precision: str) -> dict[str, Path]:
    graphs = onnx_files(path / format_path("onnx", precision))
    plain = path / TRITON_ONNX
    if not graphs and precision == "float32" and plain.exists():
        # Triton takes a folder of that name, too, for a graph with files of its own beside it.
        graphs = {DEFAULT_SIGNATURE: plain / TRITON_ONNX if plain.is_dir() else plain}
    return graphs
