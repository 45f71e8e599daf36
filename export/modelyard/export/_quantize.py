"""Variants of ONNX graphs in lower precision, made from the float32 files that were verified."""

from __future__ import annotations

import logging
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from modelyard.artifact import ONNX_FOLDER, PREPROCESS_SUFFIX, format_path, onnx_files
from modelyard.errors import ConversionError, PublishError
from modelyard.export._calibration import Calibration
from modelyard.export._failures import gist
from modelyard.export._runtimes import Arrays

_CALIBRATION_BATCH = 8
# What onnxruntime computes with 8-bit weights and activations of any range. It has no such convolution that takes
# signed weights, so a network of convolutions is a case for int8.
_DYNAMIC_OPS = ("Attention", "EmbedLayerNormalization", "GRU", "Gather", "Gemm", "LSTM", "MatMul")
_QUANTIZED = frozenset({"DequantizeLinear", "DynamicQuantizeLSTM", "MatMulInteger", "QuantizeLinear"})


def export_onnx_variant(directory: Path, *, precision: str, calibration: Calibration | None) -> None:
    """Writes ``onnx/<precision>/<graph>.onnx`` for every graph in ``onnx/``; preprocess graphs stay as they are.

    Inputs and outputs keep their dtypes.

    Args:
        directory: The version directory, with the float32 graphs.
        precision: ``float16``, ``int8_dynamic`` or ``int8``.
        calibration: For ``int8``.

    Raises:
        ConversionError: A graph cannot be converted, or nothing in it can be quantized.
        PublishError: The directory cannot be written.
    """
    target = directory / format_path("onnx", precision)
    changed = False
    try:
        target.mkdir(exist_ok=True)
        for graph, file in onnx_files(directory / ONNX_FOLDER).items():
            content = None
            if not graph.endswith(PREPROCESS_SUFFIX):
                content = _convert(file, graph, precision, calibration)
            if content is None:
                shutil.copyfile(file, target / file.name)
            else:
                (target / file.name).write_bytes(content)
                changed = True
    except OSError as exc:
        raise PublishError(f"Cannot write the {precision} variant below {target}: {exc}") from exc
    if not changed:
        raise ConversionError(
            f"Format onnx, precision {precision}: no graph has an operation that can be quantized so."
        )


def _convert(file: Path, graph: str, precision: str, calibration: Calibration | None) -> bytes | None:
    """The graph in another precision; None where there is nothing in it to quantize."""
    import onnx

    place = f"Format onnx, precision {precision}, graph {graph!r}"
    try:
        model = onnx.load(file)
        if precision == "float16":
            model = _float16(model)
        else:
            model = _int8(model, graph, calibration if precision == "int8" else None)
            if not any(node.op_type in _QUANTIZED for node in model.graph.node):
                return None
        onnx.checker.check_model(model, full_check=True)
        content: bytes = model.SerializeToString()
    except OSError:
        raise
    # Converter, quantizer and checker raise whatever comes up: this is the boundary that maps it.
    except Exception as exc:
        raise ConversionError(f"{place}: the conversion failed: {gist(exc)}.") from exc
    return content


def _float16(model: Any) -> Any:
    from onnxruntime.quantization.onnx_model import ONNXModel
    from onnxruntime.transformers.float16 import convert_float_to_float16

    converted = ONNXModel(convert_float_to_float16(model, keep_io_types=True))
    # The converter puts its casts of inputs and outputs where they come to mind.
    converted.topological_sort()
    return converted.model


def _int8(model: Any, graph: str, calibration: Calibration | None) -> Any:
    import onnx
    from onnxruntime import quantization

    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder) / "float32.onnx", Path(folder) / "int8.onnx"
        onnx.save(model, source)
        root = logging.getLogger()
        level = root.level
        try:
            # The quantizer advises on the root logger to preprocess, which has been done.
            root.setLevel(logging.ERROR)
            if calibration is None:
                quantization.quantize_dynamic(
                    source,
                    target,
                    per_channel=True,
                    weight_type=quantization.QuantType.QInt8,
                    op_types_to_quantize=list(_DYNAMIC_OPS),
                )
            else:
                quantization.quantize_static(
                    source,
                    target,
                    _reader(calibration.examples(graph, _CALIBRATION_BATCH)),
                    quant_format=quantization.QuantFormat.QDQ,
                    per_channel=True,
                    # Unsigned activations meet signed weights in one instruction on x86.
                    activation_type=quantization.QuantType.QUInt8,
                    weight_type=quantization.QuantType.QInt8,
                )
        finally:
            root.setLevel(level)
        return onnx.load(target)


def _reader(batches: Iterator[Arrays]) -> Any:
    from onnxruntime import quantization

    class Reader(quantization.CalibrationDataReader):
        """Hands batches over, one at a time."""

        def get_next(self) -> Any:
            """The next batch, None after the last."""
            return next(batches, None)

    return Reader()
