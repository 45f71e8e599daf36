"""Models that compute with text, or read files of images: what has no operators is told by name, before the work."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

import tensorflow as tf

from modelyard.errors import ConversionError
from modelyard.export.publish import ExportOptions
from modelyard.export.sources._trace import TracedModel
from modelyard.export.sources._unsafe_ops import reachable
from modelyard.export.text import prefers_shorter

if TYPE_CHECKING:
    from tensorflow.core.framework.node_def_pb2 import NodeDef
    from tensorflow.python.types.core import PolymorphicFunction

#: What neither ONNX (see text/) nor TFLite has. Lookup tables are none of it.
_NOWHERE = frozenset(
    {
        "ReduceJoin", "RegexFullMatch", "RegexReplace", "StringSplit", "StringToHashBucket", "Substr",
        "UnicodeDecodeWithOffsets", "UnicodeTranscode", "UnsortedSegmentJoin",
    }
)  # fmt: skip
#: Files of images. Servers read them before an encoded image signature, see :class:`EncodedImageFunction`.
_IMAGES = frozenset(
    {"DecodeAndCropJpeg", "DecodeBmp", "DecodeGif", "DecodeImage", "DecodeJpeg", "DecodePng", "DecodeWebP"}
)
#: What only ONNX has.
_ONNX = frozenset(
    {
        "AsString", "StaticRegexFullMatch", "StaticRegexReplace", "StringJoin", "StringLength", "StringLower",
        "StringNGrams", "StringSplitV2", "StringStrip", "StringToHashBucketFast", "StringToHashBucketStrong",
        "StringUpper", "UnicodeDecode", "UnicodeEncode",
    }
)  # fmt: skip
_NAMES = {"onnx": "ONNX", "tflite": "TFLite"}
_MISSING: Mapping[str, frozenset[str]] = {"onnx": _NOWHERE, "tflite": _NOWHERE | _ONNX}


def check_text(source: TracedModel, options: ExportOptions) -> None:
    """Refuses a model of text where formats are required that it cannot have, before any work is done."""
    reasons: dict[str, str] = {}
    for format in options.formats:
        if format not in options.optional:
            try:
                check_graphs(source.graphs, format)
            except ConversionError as exc:
                reasons[format] = exc.message
    if not reasons:
        return
    others = [each for each in options.formats if each not in reasons]
    ways = [" ".join(f"--format {each}" for each in others)] if others else []
    ways.append(" ".join(f"--optional {each}" for each in reasons))
    raise ConversionError(
        f"{' '.join(reasons.values())} Publish the rest ({', or '.join(ways)}; in Python ExportOptions.formats and "
        ".optional), or export the part behind it."
    )


def check_graphs(graphs: Mapping[str, PolymorphicFunction], format: str) -> None:
    """Refuses graphs that compute with text as a format cannot."""
    for name, function in graphs.items() if format in _MISSING else ():
        concrete = function.get_concrete_function()
        nodes = list(reachable(concrete.graph.as_graph_def(), [tensor.name for tensor in concrete.outputs]))
        found = sorted({node.op for node in nodes} & _MISSING[format])
        if format == "tflite" and any(node.op == "SparseCross" and tf.string in _types(node) for node in nodes):
            found.append("SparseCross")
        if format == "onnx":
            found += _patterns(nodes)
        if images := sorted({node.op for node in nodes} & _IMAGES):
            raise ConversionError(
                f"Format {format}, graph {name!r}: it reads images by {', '.join(images)}, for which "
                f"{_NAMES[format]} has no operators. Declare an EncodedImageFunction: its images are decoded outside "
                "of the graph."
            )
        if found:
            raise ConversionError(
                f"Format {format}, graph {name!r}: it computes with strings by {', '.join(found)}, for which "
                f"{_NAMES[format]} has no operators."
            )


def _types(node: NodeDef) -> list[tf.DType]:
    return [tf.as_dtype(each) for each in node.attr["dense_types"].list.type]


def _patterns(nodes: list[NodeDef]) -> list[str]:
    """Regular expressions that match otherwise where a text is split at each character, which is how they replace."""
    patterns = {node.attr["pattern"].s.decode() for node in nodes if node.op == "StaticRegexReplace"}
    found = []
    for pattern in sorted(patterns):
        bare = re.sub(r"\\[^AbBzQC]|\[\^?\]?(?:\\.|\[:\^?\w+:\]|[^\]\\])*\]", "", pattern)
        if re.search(r"\\|\^|\$|\(\?[^:)]*m", bare):
            found.append(f"the regular expression {pattern!r}, which looks at what is beside a match,")
        elif tf.strings.regex_full_match("", pattern):
            found.append(f"the regular expression {pattern!r}, which matches nothing, too,")
        elif prefers_shorter(pattern):
            found.append(f"the regular expression {pattern!r}, which does not always take the longest match,")
    return found
