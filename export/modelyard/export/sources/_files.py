"""Serve-only sources: ONNX and TFLite files, that no TensorFlow model stands behind."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, MutableSequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Any

from modelyard.artifact import DEFAULT_SIGNATURE, ONNX_FOLDER, TFLITE_NAME
from modelyard.errors import ConfigurationError, ConversionError, PublishError, VerificationError
from modelyard.export.formats import gist
from modelyard.export.publish import FORMATS, Format
from modelyard.export.runtimes import Runtime, load_runtime
from modelyard.export.sources._trace import TracedModel

#: By suffix, the one format that such a file is served as.
FILE_FORMATS: dict[str, Format] = {".onnx": "onnx", ".tflite": "tflite"}

_MLMODEL = "MLmodel"
#: Where MLflow's flavors onnx, tensorflow and keras keep the model.
_IN_MLFLOW = ("model.onnx", "data/model.keras", "data/model.h5", "data/model", "tf2model")


def model_path(path: Path) -> Path:
    """The model in a folder that MLflow wrote; any other path is one itself."""
    if not (path / _MLMODEL).is_file():
        return path
    found = [path / name for name in _IN_MLFLOW if (path / name).exists()]
    if len(found) != 1:
        there = ", ".join(sorted(each.name for each in path.iterdir()))
        raise ConfigurationError(
            f"{path} is an MLflow model with the files {there}; expected one of {', '.join(_IN_MLFLOW)}, as the "
            "flavors onnx, tensorflow and keras write it. Models of PyTorch, scikit-learn, XGBoost, LightGBM come by "
            "a function that loads them: --from LIBRARY MODULE:FUNCTION, or export(model, ...)."
        )
    return found[0]


@dataclass(frozen=True, kw_only=True)
class ServedFile:
    """A file with the runtime that serves it."""

    format: Format
    model: TracedModel
    runtime: Runtime
    absent: dict[str, str]


def load_file(path: Path) -> ServedFile:
    """Loads a file in its own runtime."""
    format = FILE_FORMATS[path.suffix]
    with TemporaryDirectory() as folder:
        target = copy_file(format, path, Path(folder))
        if format == "onnx":
            _check_onnx(path, target)
        try:
            runtime = load_runtime(format, Path(folder))
        except VerificationError as exc:
            raise ConversionError(f"{path} cannot be served: {exc.message}") from exc
    reason = f"The source is {path.name}: no TensorFlow model stands behind it to make this format from."
    return ServedFile(
        format=format,
        model=TracedModel(root=None, signatures=runtime.graphs, graphs=dict.fromkeys(runtime.graphs), serving={},
                          files={format: path}),
        runtime=runtime,
        absent={each: reason for each in FORMATS if each != format},
    )  # fmt: skip


def copy_file(format: Format, path: Path, directory: Path) -> Path:
    """Takes a file over to where servers look for it, with the files beside it that hold its weights."""
    target = directory / (TFLITE_NAME if format == "tflite" else f"{ONNX_FOLDER}/{DEFAULT_SIGNATURE}.onnx")
    beside = weight_files(path) if format == "onnx" else ()
    try:
        target.parent.mkdir(exist_ok=True)
        shutil.copyfile(path, target)
        for name in beside:
            copy = target.parent / name
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path.parent / name, copy)
    except OSError as exc:
        raise PublishError(f"Cannot copy {path}: {exc}") from exc
    return target


def weight_files(path: Path) -> tuple[str, ...]:
    """The files beside an ONNX file that hold weights of it, relative to its folder."""
    import onnx

    try:
        model = onnx.load(path, load_external_data=False)
        tensors = [each for each in _tensors(model) if onnx.external_data_helper.uses_external_data(each)]
        names = sorted({onnx.external_data_helper.ExternalDataInfo(each).location for each in tensors})
    except OSError as exc:
        raise PublishError(f"Cannot copy {path}: {exc}") from exc
    # The parser raises classes of its own: this is the boundary.
    except Exception as exc:
        raise ConversionError(f"{path} is no valid ONNX file: {gist(exc)}.") from exc
    folder = path.parent.resolve()
    for name in names:
        where = PurePosixPath(name)
        # Links count: what they lead to is what would be copied.
        inside = (folder / where).resolve().is_relative_to(folder)
        if not name or "\\" in name or where.is_absolute() or ".." in where.parts or not inside:
            raise ConversionError(
                f"{path} keeps weights in {name!r}, which is not in its folder or is a link out of it. Expected files "
                "beside the model: copy them there (cp -L follows links), or save the model again."
            )
        if where.suffix == ".onnx":
            raise ConversionError(
                f"{path} keeps weights in {name!r}, a name that servers read as a model. Save it again with another "
                "name for the external data."
            )
        if not (folder / where).is_file():
            raise ConversionError(
                f"{path} keeps weights in {name!r}, which is not beside it. Bring both files into one folder."
            )
    return tuple(names)


def _tensors(message: Any) -> Iterator[Any]:
    """Every tensor anywhere in an ONNX model: of the graph, of branches and loops, and of attributes."""
    for field, value in message.ListFields():
        if field.message_type is None:
            continue
        for each in value if isinstance(value, MutableSequence) else [value]:
            if field.message_type.name == "TensorProto":
                yield each
            else:
                yield from _tensors(each)


def _check_onnx(path: Path, copy: Path) -> None:
    import onnx

    try:
        onnx.checker.check_model(str(copy), full_check=False)
        outputs = onnx.load(copy, load_external_data=False).graph.output
    # Parser and checker raise classes of their own, ValueError, OSError and more: this is the boundary.
    except Exception as exc:
        raise ConversionError(f"{path} is no valid ONNX file: {gist(exc)}.") from exc
    for output in outputs:
        kind = output.type.WhichOneof("value")
        if kind != "tensor_type":
            raise ConversionError(
                f"{path}: output {output.name!r} is a {str(kind).removesuffix('_type')}, expected a tensor. "
                "scikit-learn's ZipMap makes maps of probabilities: convert the model again with "
                'options={id(model): {"zipmap": False}}.'
            )
