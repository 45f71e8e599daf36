"""TFLite: all graphs in one file, each under its own signature name.

The route matters. Measured with TensorFlow 2.21: ``from_saved_model`` on a SavedModel that holds a Keras model returned
a file without a single weight, and no error. Freezing each function first leaves no variable that could get lost, but
those of its state; verification would catch it if one did.
"""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import tensorflow as tf

from modelyard.artifact import format_path
from modelyard.errors import ConversionError, PublishError
from modelyard.export.formats._failures import gist, quiet_compiler
from modelyard.export.formats._freeze import freeze, widened_dtypes
from modelyard.export.formats._saved_model import save_functions
from modelyard.export.sources import TracedModel, written_variables
from modelyard.export.variants import Calibration, Layer, group_layers

if TYPE_CHECKING:
    from tensorflow.python.types.core import PolymorphicFunction

    from modelyard.export.runtimes import Arrays

_T = TypeVar("_T")
_INT8 = "Format tflite, precision int8"
# What a layer begins with.
_WEIGHTED = frozenset(
    {
        "BATCH_MATMUL",
        "CONV_2D",
        "DEPTHWISE_CONV_2D",
        "EMBEDDING_LOOKUP",
        "FULLY_CONNECTED",
        "GATHER",
        "TRANSPOSE_CONV",
        "UNIDIRECTIONAL_SEQUENCE_LSTM",
    }
)


def export_tflite(
    source: TracedModel, directory: Path, *, precision: str = "float32", calibration: Calibration | None = None
) -> None:
    """Writes ``model.tflite``, or the variant beside it, with one signature for every graph.

    Inputs and outputs keep their dtypes. Of ``int8``, operations that have no integer kernel, strings among them, stay
    as they are; so do graphs without examples, which only preprocess.
    """
    place = "Format tflite" if precision == "float32" else f"Format tflite, precision {precision}"
    with tempfile.TemporaryDirectory() as folder, _boundary(place, source):
        content = _convert(_converter(source, Path(folder), precision, calibration).convert)
    _write(directory, precision, content)


class TfliteInt8:
    """``model.int8.tflite`` with some layers in float32, by the converter's own debugger."""

    format = "tflite"
    precision = "int8"

    def __init__(self, source: TracedModel, calibration: Calibration, *, work: Path) -> None:
        self._source = source
        self._calibration = calibration
        self._work = work

    @cached_property
    def _debugger(self) -> tf.lite.experimental.QuantizationDebugger:
        converter = _converter(self._source, self._work, self.precision, self._calibration)
        make = tf.lite.experimental.QuantizationDebugger
        return _convert(
            lambda: make(converter=converter, debug_options=tf.lite.experimental.QuantizationDebugOptions())
        )

    @cached_property
    def layers(self) -> list[Layer]:
        """What can be left in float32, in the order of computing."""
        from ai_edge_litert import schema_py_generated as schema

        with _boundary(_INT8, self._source):
            model = schema.Model.GetRootAs(self._debugger.calibrated_model)
        graphs = {
            each.SubgraphIndex(): each.SignatureKey().decode()
            for each in (model.SignatureDefs(index) for index in range(model.SignatureDefsLength()))
        }
        operators = {code: name for name, code in vars(schema.BuiltinOperator).items() if isinstance(code, int)}
        found: list[Layer] = []
        for index, graph in graphs.items():
            if graph not in self._calibration.inputs:
                continue
            subgraph, nodes = model.Subgraphs(index), []
            for operator in (subgraph.Operators(place) for place in range(subgraph.OperatorsLength())):
                kind = operators[model.OperatorCodes(operator.OpcodeIndex()).BuiltinCode()]
                nodes.append((subgraph.Tensors(operator.Outputs(0)).Name().decode(), kind))
            found += group_layers(graph, nodes, _WEIGHTED)
        return found

    def write(self, directory: Path, keep: Collection[Layer], *, only: str | None = None) -> None:
        """Writes ``model.int8.tflite``."""
        with _boundary(_INT8, self._source):
            options = tf.lite.experimental.QuantizationDebugOptions(
                denylisted_nodes=[name for layer in keep for name in layer.nodes]
            )
            debugger = self._debugger

            def convert() -> bytes:
                debugger.options = options
                return debugger.get_nondebug_quantized_model()

            content = _convert(convert)
        _write(directory, self.precision, content)


@contextmanager
def _boundary(place: str, source: TracedModel) -> Iterator[None]:
    try:
        yield
    except (ConversionError, PublishError):
        raise
    except OSError as exc:
        raise PublishError(f"Cannot write a temporary SavedModel: {exc}") from exc
    # The converter raises whatever comes up, and names the op it does not know in its message.
    except Exception as exc:
        raise ConversionError(
            f"{place}, graphs {', '.join(source.graphs)}: the converter failed: {gist(exc)}."
        ) from exc


def _converter(
    source: TracedModel, folder: Path, precision: str, calibration: Calibration | None
) -> tf.lite.TFLiteConverter:
    place = "Format tflite" if precision == "float32" else f"Format tflite, precision {precision}"
    module = tf.Module()
    frozen: dict[str, PolymorphicFunction] = {}
    held: list[tf.Variable | tf.lookup.StaticHashTable] = []
    state: set[int] = set()
    if any(signature.stateful for signature in source.signatures.values()):
        state = {each for function in source.graphs.values() for each in written_variables(function)}
    for graph, function in source.graphs.items():
        try:
            ready = freeze(function, target="tflite", widened=widened_dtypes(function, "tflite"), state=state)
            frozen[graph], parts = ready.bound()
        # Freezing raises whatever comes up: this is the boundary that maps it.
        except Exception as exc:
            raise ConversionError(f"{place}, graph {graph!r}: it cannot be made ready: {gist(exc)}.") from exc
        held += parts
    module.functions, module.held = frozen, held
    # This copy is not trained, and a frozen function has lost what such gradients capture.
    save = tf.saved_model.SaveOptions(experimental_custom_gradients=False)
    save_functions(module, folder, frozen, options=save)
    converter = tf.lite.TFLiteConverter.from_saved_model(str(folder), signature_keys=list(frozen))
    # Else infinity, which masks and comparisons are written with, becomes the largest number.
    converter.canonicalizing_inf_as_min_max_float = False
    _set_precision(converter, precision, calibration)
    return converter


def _write(directory: Path, precision: str, content: bytes) -> None:
    path = directory / format_path("tflite", precision)
    try:
        path.write_bytes(content)
    except OSError as exc:
        raise PublishError(f"Cannot write {path.name} below {directory}: {exc}") from exc


def _set_precision(converter: tf.lite.TFLiteConverter, precision: str, calibration: Calibration | None) -> None:
    if precision == "float32":
        return
    converter.optimizations = [tf.lite.Optimize.DEFAULT]
    if precision == "float16":
        converter.target_spec.supported_types = [tf.float16]
    if precision == "int8" and calibration is not None:
        inputs = calibration.inputs

        def representative() -> Iterator[tuple[str, Arrays]]:
            for graph in inputs:
                for example in calibration.examples(graph):
                    # The file has float32 in the place of float64.
                    yield (
                        graph,
                        {k: v.astype(np.float32) if v.dtype == np.float64 else v for k, v in example.items()},
                    )

        converter.representative_dataset = representative
        converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS_INT8, tf.lite.OpsSet.TFLITE_BUILTINS]


def _convert(work: Callable[[], _T]) -> _T:
    with warnings.catch_warnings(), quiet_compiler():
        # Calibration runs TensorFlow's own interpreter, which announces its end.
        warnings.filterwarnings("ignore", message="(?s).*tf.lite.Interpreter is deprecated", category=UserWarning)
        return work()
