"""What tf2onnx is given for text."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from modelyard.export.text._hashes import hash_fast, hash_strong, length
from modelyard.export.text._strings import (
    as_string,
    change_case,
    decode,
    encode,
    equal,
    full_match,
    join,
    replace,
    split,
    strip,
)
from modelyard.export.text._tables import counts, cross, ngrams, ragged_counts

if TYPE_CHECKING:
    from collections.abc import Callable

    from onnx import ModelProto
    from tf2onnx.graph import Graph, Node

Handler: TypeAlias = "Callable[[Graph, Node, str, list[str]], None]"
#: Operators of ONNX's operator set 20, of which tf2onnx 1.17 knows nothing: by the name that they have until then.
_OPERATORS = {"StringEqual": "Equal", **{each: each for each in ("RegexFullMatch", "StringConcat", "StringSplit")}}
_OPSET, _IR = 20, 9


def make_string_handlers() -> dict[str, Handler]:
    """Handlers by TensorFlow's name of the operator, as ``make_handlers`` takes them."""
    return {
        "AsString": as_string,
        "DenseBincount": counts,
        "Equal": partial(equal, "Equal"),
        "NotEqual": partial(equal, "NotEqual"),
        "RaggedBincount": ragged_counts,
        "SparseCross": cross,
        "StaticRegexFullMatch": full_match,
        "StaticRegexReplace": replace,
        "StringJoin": join,
        "StringLength": length,
        "StringLower": partial(change_case, "LOWER"),
        "StringNGrams": ngrams,
        "StringSplitV2": split,
        "StringStrip": strip,
        "StringToHashBucketFast": hash_fast,
        "StringToHashBucketStrong": hash_strong,
        "StringUpper": partial(change_case, "UPPER"),
        "UnicodeDecode": decode,
        "UnicodeEncode": encode,
    }


def name_operator_sets(model: ModelProto) -> None:
    """Names the operator sets of the nodes that these handlers made, which tf2onnx does not."""
    from onnx.helper import make_opsetid

    nodes = list(_nodes(model.graph))
    known = {each.domain: each for each in model.opset_import}
    model.opset_import.extend(
        make_opsetid(domain, 1) for domain in sorted({node.domain for node in nodes} - known.keys())
    )
    ours = [node for node in nodes if node.op_type in _OPERATORS and not node.domain]
    for node in ours:
        node.op_type = _OPERATORS[node.op_type]
    if ours:
        # Of what this package and tf2onnx write, only DFT changed its form on the way here, which is no string's.
        known[""].version = max(known[""].version, _OPSET)
        model.ir_version = max(model.ir_version, _IR)


def _nodes(graph: Any) -> Iterator[Any]:
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _nodes(attribute.g)
