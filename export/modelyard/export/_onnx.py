"""ONNX: one file for each graph, made by tf2onnx and checked by onnx."""

from __future__ import annotations

from pathlib import Path

from modelyard.errors import ConversionError, PublishError
from modelyard.export._freeze import freeze
from modelyard.export._onnx_pads import guard_pads
from modelyard.export._trace import TracedModel

ONNX_FOLDER = "onnx"


def export_onnx(source: TracedModel, directory: Path, *, opset: int) -> None:
    """Writes ``onnx/<graph>.onnx`` for every graph.

    Args:
        source: The traced model.
        directory: The version directory.
        opset: ONNX operator set.

    Raises:
        ConversionError: tf2onnx cannot convert a graph, or what it made is not valid ONNX.
        PublishError: The directory cannot be written.
    """
    import onnx
    import tf2onnx

    folder = directory / ONNX_FOLDER
    for graph, function in source.graphs.items():
        try:
            frozen = freeze(function)
            model, _ = tf2onnx.convert.from_function(frozen, input_signature=function.input_signature, opset=opset)
            guard_pads(model)
            onnx.checker.check_model(model, full_check=True)
            content = model.SerializeToString()
        # Converter and checker raise whatever comes up: this is the boundary that maps it.
        except Exception as exc:
            raise ConversionError(f"Format onnx, graph {graph!r}: tf2onnx at opset {opset} failed: {exc}") from exc
        try:
            folder.mkdir(exist_ok=True)
            (folder / f"{graph}.onnx").write_bytes(content)
        except OSError as exc:
            raise PublishError(f"Cannot write {graph}.onnx below {folder}: {exc}") from exc
