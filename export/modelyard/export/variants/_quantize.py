"""Variants of ONNX graphs in lower precision, made from the float32 files that were verified."""

from __future__ import annotations

import logging
import platform
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterator
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from modelyard.artifact import ONNX_FOLDER, PREPROCESS_SUFFIX, format_path, onnx_files
from modelyard.artifact.runtimes import disable_telemetry
from modelyard.errors import ConversionError, PublishError
from modelyard.export.formats import gist
from modelyard.export.runtimes import Arrays
from modelyard.export.variants._calibration import Calibration
from modelyard.export.variants._sensitivity import Layer, group_layers

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto
    from onnxruntime.quantization import CalibrationDataReader

_CALIBRATION_BATCH = 8
# What onnxruntime computes with 8-bit weights and activations of any range.
_DYNAMIC_OPS = ("Attention", "EmbedLayerNormalization", "Gather", "Gemm", "LSTM", "MatMul")
# What it does not, or (ConvInteger: unsigned weights with one scale for all channels) four times as slowly as in
# float32 and further off. Their weights are stored in 8 bits, and are floats again when the file is loaded. By
# operator: its inputs that are weights, and their axes that have scales of their own.
_STORED_OPS = {"Conv": ((1,), (0,)), "ConvTranspose": ((1,), (1,)), "GRU": ((1, 2), (0, 1)), "RNN": ((1, 2), (0, 1))}
_WEIGHTED = frozenset({*_DYNAMIC_OPS, *_STORED_OPS})
_QUANTIZED = frozenset(
    {"DequantizeLinear", "DynamicQuantizeLSTM", "DynamicQuantizeLinear", "MatMulInteger", "QuantizeLinear"}
)
#: Suffix of weights that are stored in 8 bits.
_STORED = "_int8"


class OnnxVariant:
    """``onnx/<precision>/<graph>.onnx`` for every graph in ``onnx/``; preprocess graphs stay as they are.

    Inputs and outputs keep their dtypes.
    """

    format = "onnx"

    def __init__(self, directory: Path, *, precision: str, calibration: Calibration | None, work: Path) -> None:
        disable_telemetry()
        self.precision = precision
        self._files = onnx_files(directory / ONNX_FOLDER)
        self._calibration = calibration
        self._work = work

    @cached_property
    def layers(self) -> list[Layer]:
        """What can be left in float32, in the order of computing."""
        found: list[Layer] = []
        for graph, file in self._files.items():
            if not graph.endswith(PREPROCESS_SUFFIX):
                nodes = [(node.name, node.op_type) for node in _load(file).graph.node]
                convertible = self._convertible()
                nodes = [each for each in nodes if convertible is None or each[1] in convertible]
                found += group_layers(graph, nodes, _WEIGHTED)
        return found

    def _convertible(self) -> Collection[str] | None:
        from onnxruntime.quantization import registry

        if self.precision == "float16":
            return None
        return _WEIGHTED if self.precision == "int8_dynamic" else {*registry.QLinearOpsRegistry, *registry.QDQRegistry}

    def write(self, directory: Path, keep: Collection[Layer] = (), *, only: str | None = None) -> None:
        """Writes the variant below a version directory."""
        target = directory / format_path("onnx", self.precision)
        changed = bool(keep)
        try:
            target.mkdir(parents=True, exist_ok=True)
            for graph, file in self._files.items():
                if only not in (None, graph):
                    continue
                content = None
                if not graph.endswith(PREPROCESS_SUFFIX):
                    kept = [name for layer in keep if layer.graph == graph for name in layer.nodes]
                    content = self._convert(file, graph, kept)
                if content is None:
                    shutil.copyfile(file, target / file.name)
                else:
                    (target / file.name).write_bytes(content)
                    changed = True
        except OSError as exc:
            raise PublishError(f"Cannot write the {self.precision} variant below {target}: {exc}") from exc
        if not changed:
            raise ConversionError(
                f"Format onnx, precision {self.precision}: no graph has an operation that can be quantized so: no "
                "convolution, matrix product, recurrent layer or embedding with weights. There is nothing that would "
                "be smaller in 8 bits; serve it in float32."
            )

    def _convert(self, file: Path, graph: str, keep: list[str]) -> bytes | None:
        """The graph in another precision; None where there is nothing in it to quantize."""
        import onnx

        try:
            model = _load(file)
            convert = {
                "float16": lambda: _float16(model, keep),
                "int8": lambda: self._int8(model, graph, keep),
                "int8_dynamic": lambda: _int8_dynamic(model, keep),
            }
            model = convert[self.precision]()
            if self.precision != "float16":
                stored = any(each.name.endswith(_STORED) for each in model.graph.initializer)
                if not stored and not any(node.op_type in _QUANTIZED for node in model.graph.node):
                    return None
            onnx.checker.check_model(model, full_check=True)
            content: bytes = model.SerializeToString()
        except OSError:
            raise
        # Converter, quantizer and checker raise whatever comes up: this is the boundary that maps it.
        except Exception as exc:
            place = f"Format onnx, precision {self.precision}, graph {graph!r}"
            raise ConversionError(f"{place}: the conversion failed: {gist(exc)}.") from exc
        return content

    def _int8(self, model: ModelProto, graph: str, keep: list[str]) -> ModelProto:
        from onnxruntime import quantization

        if self._calibration is None:
            raise ValueError("int8 needs examples to be calibrated on")
        # The ranges of a graph do not depend on what of it is quantized.
        ranges = self._work / f"{sorted(self._files).index(graph)}.json"
        quantized = _quantize(
            quantization.quantize_static,
            model,
            keep,
            calibration_data_reader=_reader(self._calibration.examples(graph, _CALIBRATION_BATCH)),
            calibration_cache_path=ranges,
            quant_format=quantization.QuantFormat.QDQ,
            # Unsigned activations meet signed weights in one instruction on x86.
            activation_type=quantization.QuantType.QUInt8,
        )
        _guard_floats(quantized.graph)
        return quantized


def _load(file: Path) -> ModelProto:
    """A graph of which every node has a name of its own, the same each time."""
    import onnx

    model = onnx.load(file)
    seen: set[str] = set()
    for index, node in enumerate(model.graph.node):
        if not node.name or node.name in seen:
            node.name = f"{node.name or node.op_type}#{index}"
        seen.add(node.name)
    return model


def _float16(model: ModelProto, keep: list[str]) -> ModelProto:
    from onnxruntime.quantization.onnx_model import ONNXModel
    from onnxruntime.transformers.float16 import DEFAULT_OP_BLOCK_LIST, convert_float_to_float16

    converted = convert_float_to_float16(
        model, keep_io_types=True, op_block_list=DEFAULT_OP_BLOCK_LIST, node_block_list=keep
    )
    _join_casts(converted.graph)
    # The converter adds its casts of inputs and outputs in no topological order.
    result = ONNXModel(converted)
    result.topological_sort()
    return result.model


def _join_casts(graph: GraphProto) -> None:
    """Takes out casts to 16 bits and back between operations in float32, inputs and outputs, and casts made twice.

    What is too large or too small for 16 bits would be lost in the former; the
    latter are what the converter makes where two operations in float32 read one value.
    """
    from onnx import TensorProto

    def casts(node: NodeProto, to: int) -> bool:
        return node.op_type == "Cast" and any(each.name == "to" and each.i == to for each in node.attribute)

    made = {node.output[0]: node for node in graph.node if node.op_type == "Cast"}
    for node in list(graph.node):
        if node.op_type != "Cast":
            continue
        if made[node.output[0]] is not node:
            graph.node.remove(node)
            continue
        before = made.get(node.input[0])
        if before is not None and casts(node, TensorProto.FLOAT) and casts(before, TensorProto.FLOAT16):
            node.input[0] = before.input[0]
    used = {name for node in graph.node for name in node.input} | {each.name for each in graph.output}
    for name, node in made.items():
        if name not in used:
            graph.node.remove(node)


def _int8_dynamic(model: ModelProto, keep: list[str]) -> ModelProto:
    from onnxruntime import quantization

    # It makes matrix products of what is Gemm, under new names.
    excluded = [*keep, *(f"{name}_MatMul" for name in keep)]
    model = _quantize(quantization.quantize_dynamic, model, excluded, op_types_to_quantize=list(_DYNAMIC_OPS))
    _store_weights(model.graph, set(keep))
    return model


def _quantize(quantize: Callable[..., None], model: ModelProto, keep: list[str], **arguments: object) -> ModelProto:
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
            quantize(
                source,
                target,
                per_channel=True,
                reduce_range=saturates(platform.machine()),
                weight_type=quantization.QuantType.QInt8,
                nodes_to_exclude=keep,
                **arguments,
            )
        finally:
            root.setLevel(level)
        return onnx.load(target)


def _guard_floats(graph: GraphProto) -> None:
    """Keeps onnxruntime from quantizing what was left in float32.

    Its WeightBiasQuantization takes any convolution between quantized values to be meant in 8 bits, and gives its
    weights one scale for all channels. It looks no further than the node before: a sum of one value is its value.
    """
    from onnx import helper

    dequantized = {node.output[0] for node in graph.node if node.op_type == "DequantizeLinear"}
    nodes = []
    for node in graph.node:
        if node.op_type in ("Conv", "ConvTranspose", "Gemm") and node.input[0] in dequantized:
            if node.input[1] not in dequantized:
                guarded = f"{node.name}_float"
                nodes.append(helper.make_node("Sum", [node.input[0]], [guarded], name=guarded))
                node.input[0] = guarded
        nodes.append(node)
    del graph.node[:]
    graph.node.extend(nodes)


def saturates(machine: str, facts: Path = Path("/proc/cpuinfo")) -> bool:
    """Whether a processor adds products of 8 bits in 16, which may be too few: x86 without VNNI."""
    if machine.lower() not in ("x86_64", "amd64"):
        return False
    return "vnni" not in (facts.read_text("utf-8") if facts.exists() else "")


def _store_weights(graph: GraphProto, keep: Collection[str]) -> None:
    """Stores weights in 8 bits, symmetric, per channel; every runtime makes floats of them when it loads the file."""
    from onnx import TensorProto, helper, numpy_helper

    weights = {each.name: each for each in graph.initializer if each.data_type == TensorProto.FLOAT}
    made: dict[str, list[NodeProto]] = {}
    for node in graph.node:
        inputs, axes = _STORED_OPS.get(node.op_type, ((), ()))
        for index in inputs:
            name = node.input[index]
            if node.name in keep or name not in weights:
                continue
            node.input[index] = f"{name}_float"
            if name in made:
                continue
            values = numpy_helper.to_array(weights[name])
            others = tuple(axis for axis in range(values.ndim) if axis not in axes)
            scale = np.abs(values).max(axis=others, keepdims=True) / np.float32(127)
            stored = np.round(values / np.where(scale > 0, scale, 1)).astype(np.int8)
            graph.initializer.append(numpy_helper.from_array(stored, f"{name}{_STORED}"))
            graph.initializer.append(numpy_helper.from_array(scale, f"{name}_scale"))
            made[name] = [
                helper.make_node("Cast", [f"{name}{_STORED}"], [f"{name}_cast"], to=TensorProto.FLOAT),
                helper.make_node("Mul", [f"{name}_cast", f"{name}_scale"], [f"{name}_float"]),
            ]
    nodes = [*(node for pair in made.values() for node in pair), *graph.node]
    del graph.node[:]
    graph.node.extend(nodes)
    used = {name for node in graph.node for name in node.input}
    for name in made:
        if name not in used:
            graph.initializer.remove(weights[name])


def _reader(batches: Iterator[Arrays]) -> CalibrationDataReader:
    from onnxruntime import quantization

    class Reader(quantization.CalibrationDataReader):
        """Hands batches over, one at a time."""

        def get_next(self) -> Arrays | None:
            """The next batch, None after the last."""
            return next(batches, None)

    return Reader()
