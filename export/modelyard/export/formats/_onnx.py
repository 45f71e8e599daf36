"""ONNX: one file for each graph, made by tf2onnx, simplified by onnxslim and checked by onnx."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

from modelyard.artifact import ONNX_FOLDER, onnx_file_name, renamed_outputs
from modelyard.artifact.runtimes import disable_telemetry
from modelyard.errors import ConversionError, PublishError
from modelyard.export.formats._draws import forget_seeds
from modelyard.export.formats._failures import gist
from modelyard.export.formats._freeze import freeze, widened_dtypes
from modelyard.export.formats._onnx_pads import guard_pads
from modelyard.export.formats._tf2onnx import convert_function
from modelyard.export.sources import TracedModel, graph_signature

if TYPE_CHECKING:
    from onnx import ModelProto

_LOG = logging.getLogger("modelyard.export")


def export_onnx(source: TracedModel, directory: Path, *, opset: int | None = None, simplify: bool = True) -> None:
    """Writes ``onnx/<graph>.onnx`` for every graph."""
    # Converters import onnxruntime.
    disable_telemetry()
    import onnx

    opset = opset or newest_opset()
    folder = directory / ONNX_FOLDER
    for graph, function in source.graphs.items():
        try:
            frozen = freeze(function, target="onnx", widened=widened_dtypes(function, "onnx"))
            model = convert_function(frozen, opset=opset, renamed=renamed_outputs(graph_signature(source, graph)))
            guard_pads(model)
            forget_seeds(model.graph)
            onnx.checker.check_model(model, full_check=True)
        # Converter and checker raise whatever comes up: this is the boundary that maps it.
        except Exception as exc:
            raise ConversionError(
                f"Format onnx, graph {graph!r}: tf2onnx at opset {opset} failed: {gist(exc)}."
            ) from exc
        if simplify and not _has_texts(model):
            model = _simplify(graph, model)
        try:
            folder.mkdir(exist_ok=True)
            (folder / onnx_file_name(graph)).write_bytes(model.SerializeToString())
        except OSError as exc:
            raise PublishError(f"Cannot write {onnx_file_name(graph)} below {folder}: {exc}") from exc


def newest_opset() -> int:
    """The newest ONNX operator set that the tf2onnx installed here writes and the onnxruntime installed here reads."""
    disable_telemetry()
    import onnx
    import onnxruntime
    from onnx.helper import make_graph, make_model, make_node, make_opsetid, make_tensor_value_info
    from tf2onnx import constants

    reasons: list[str] = []
    value = [make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1]) for name in "xy"]
    graph = make_graph([make_node("Identity", ["x"], ["y"])], "probe", value[:1], value[1:])
    for opset, ir_version in sorted(constants.OPSET_TO_IR_VERSION.items(), reverse=True):
        model = make_model(graph, opset_imports=[make_opsetid("", opset)], ir_version=ir_version)
        try:
            onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        # onnxruntime does not say what it reads, and its exceptions share no base class: to try is the only way.
        except Exception as exc:
            reasons.append(f"{opset}: {exc}")
        else:
            return int(opset)
    raise ConversionError(
        "tf2onnx as installed writes no operator set that onnxruntime as installed reads; upgrade them. "
        f"What onnxruntime said: {'; '.join(reasons)}"
    )


def _has_texts(model: ModelProto) -> bool:
    """Whether there are strings among the constants, which onnxslim 0.1 cannot write."""
    import onnx

    return any(each.data_type == onnx.TensorProto.STRING for each in model.graph.initializer)


def _simplify(graph: str, model: ModelProto) -> ModelProto:
    import onnx
    import onnxslim

    inputs = list(model.graph.input)
    try:
        simple = onnxslim.slim(model)
        kept = {each.name for each in simple.graph.input}
        # It drops inputs that nothing computes with; the signature has them all the same.
        simple.graph.input.extend(each for each in inputs if each.name not in kept)
        onnx.checker.check_model(simple, full_check=True)
    # onnxslim too raises whatever comes up; the graph as it was converted is as right, and verified next.
    except Exception as exc:
        _LOG.warning("Format onnx, graph %r: not simplified, as onnxslim fails on it: %s.", graph, gist(exc))
        return model
    return simple
