"""Serve-only sources: ONNX and TFLite files, that no TensorFlow model stands behind."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from modelyard.artifact import DEFAULT_SIGNATURE, ONNX_FOLDER, TFLITE_NAME, Signature
from modelyard.errors import ConversionError, PublishError, VerificationError
from modelyard.export._options import Format
from modelyard.export._runtimes import Runtime, load_runtime
from modelyard.export._trace import TracedModel

#: By suffix, the one format that such a file is served as.
FILE_FORMATS: dict[str, Format] = {".onnx": "onnx", ".tflite": "tflite"}


@dataclass(frozen=True, kw_only=True)
class ServedFile:
    """A file with the runtime that serves it.

    Attributes:
        format: ``onnx`` or ``tflite``.
        model: Its signatures; it has no functions.
        runtime: The file, loaded.
        absent: By format that cannot be made from it, the reason.
    """

    format: Format
    model: TracedModel
    runtime: Runtime
    absent: dict[str, str]


def load_file(path: Path) -> ServedFile:
    """Loads a file in its own runtime.

    Args:
        path: Ends in ``.onnx`` or ``.tflite``.

    Raises:
        ConversionError: It is not valid, has no file beside it that it needs,
            or a batch size that is fixed to more than 1.
        PublishError: It cannot be copied.
    """
    format = FILE_FORMATS[path.suffix]
    if format == "onnx":
        _check_onnx(path)
    with TemporaryDirectory() as folder:
        target = Path(folder) / (TFLITE_NAME if format == "tflite" else f"{ONNX_FOLDER}/{DEFAULT_SIGNATURE}.onnx")
        try:
            target.parent.mkdir(exist_ok=True)
            shutil.copyfile(path, target)
        except OSError as exc:
            raise PublishError(f"Cannot copy {path}: {exc}") from exc
        try:
            runtime = load_runtime(format, Path(folder))
        except VerificationError as exc:
            raise ConversionError(f"{path} cannot be served: {exc.message}") from exc
    for name, signature in runtime.graphs.items():
        _check_batch(path, name, signature)
    reason = f"The source is {path.name}: no TensorFlow model stands behind it to make this format from."
    others: tuple[Format, ...] = ("saved_model", "onnx", "tflite")
    return ServedFile(
        format=format,
        model=TracedModel(root=None, signatures=runtime.graphs, graphs=dict.fromkeys(runtime.graphs), serving={},
                          files={format: path}),
        runtime=runtime,
        absent={each: reason for each in others if each != format},
    )  # fmt: skip


def _check_onnx(path: Path) -> None:
    import onnx

    try:
        model = onnx.load(path, load_external_data=False)
        onnx.checker.check_model(model, full_check=False)
    # Parser and checker raise classes of their own, ValueError, OSError and more: this is the boundary.
    except Exception as exc:
        raise ConversionError(f"{path} is no valid ONNX file: {exc}") from exc
    outside = [each.name for each in model.graph.initializer if onnx.external_data_helper.uses_external_data(each)]
    if outside:
        raise ConversionError(
            f"{path} keeps {len(outside)} weights ({outside[0]}, ...) in files beside it; expected one file that holds "
            "all. Save it again without external data."
        )


def _check_batch(path: Path, name: str, signature: Signature) -> None:
    for spec in (*signature.inputs, *signature.outputs):
        if spec.shape is not None and (not spec.shape or spec.shape[0] not in (-1, 1)):
            raise ConversionError(
                f"{path}: {spec.name!r} of signature {name!r} has shape {list(spec.shape)}; expected a first dimension "
                "that is the batch: any size, or 1."
            )
