"""Models that compute with text: what they do no converter can carry out of TensorFlow."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from modelyard.errors import ConversionError
from modelyard.export._options import ExportOptions
from modelyard.export._trace import TracedModel
from modelyard.export._unsafe_ops import reachable

#: What neither tf2onnx (1.17) nor the TFLite converter (2.21) converts. Lookup tables are none of it.
_OPS = frozenset(
    {
        "ReduceJoin", "RegexFullMatch", "RegexReplace", "StaticRegexFullMatch",
        "StaticRegexReplace", "StringJoin", "StringLength", "StringNGrams", "StringSplit", "StringSplitV2",
        "StringStrip", "StringToHashBucket", "StringToHashBucketFast", "StringToHashBucketStrong", "Substr",
        "UnicodeDecode", "UnicodeDecodeWithOffsets", "UnicodeEncode", "UnicodeTranscode", "UnsortedSegmentJoin",
    }
)  # fmt: skip


def check_text(source: TracedModel, options: ExportOptions) -> None:
    """Refuses a model of text where formats are required that it cannot have, before any work is done.

    Args:
        source: The traced model.
        options: The formats.

    Raises:
        ConversionError: A format other than the SavedModel is required.
    """
    required = [each for each in options.formats if each != "saved_model" and each not in options.optional]
    if not required:
        return
    try:
        check_graphs(source.graphs)
    except ConversionError as exc:
        raise ConversionError(
            f"{exc.message} Publish the SavedModel (--format saved_model, or --optional onnx --optional tflite; in "
            "Python ExportOptions.formats and .optional), or export the part after the tokenization."
        ) from None


def check_graphs(graphs: Mapping[str, Any]) -> None:
    """Refuses graphs that compute with text.

    Args:
        graphs: Functions by graph name.

    Raises:
        ConversionError: One does; the message names the operations.
    """
    for name, function in graphs.items():
        concrete = function.get_concrete_function()
        nodes = reachable(concrete.graph.as_graph_def(), [tensor.name for tensor in concrete.outputs])
        found = sorted({node.op for node in nodes} & _OPS)
        if found:
            raise ConversionError(
                f"Graph {name!r} computes with strings ({', '.join(found)}), which only TensorFlow does."
            )
