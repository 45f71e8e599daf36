"""Operators over strings, of which tf2onnx 1.17 has few and some wrong, in the form of its own handlers.

All are made of what onnxruntime itself has. onnxruntime-extensions is not needed, and would not help: it replaces
regular expressions twelve times as slowly, and its hashes are not TensorFlow's since 0.15.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np

from modelyard.export.text._expressions import longest
from modelyard.export.text._nodes import BOOL, INT64, STRING, Nodes, constant_text, strings, text_of

if TYPE_CHECKING:
    from tf2onnx.graph import Graph, Node

_INTEGERS = frozenset({2, 3, 4, 5, 6, 7, 12, 13})
#: What C's isspace() takes for one, in RE2's words: TensorFlow splits and strips by it.
_SPACE = r" \t\n\v\f\r"
#: A regular expression that is one class of characters.
_CLASS = re.compile(r"\[(?P<not>\^?)(?P<characters>(?:\\.|[^\[\]\\])+)\]")


def change_case(action: str, context: Graph, node: Node, name: str, _: list[str]) -> None:
    """Changes ASCII letters only, as TensorFlow does by default and onnxruntime in the locale C."""
    if text_of(node, "encoding"):
        raise ValueError(
            f"{node.type} of all of Unicode: onnxruntime and TensorFlow differ over it; leave encoding out"
        )
    source = node.input[0]
    graph = Nodes(context, node, name)
    changed = graph.rows(source, "StringNormalizer", case_change_action=action, locale="C")
    graph.done(graph.like(changed, source))


def replace(context: Graph, node: Node, name: str, _: list[str]) -> None:
    """Splits texts into what matches and what does not, and joins them again: ONNX cannot replace.

    Where a text goes on after a piece, no expression knows what was before: those that ask are refused early.
    """
    source, pattern, rewrite = node.input[0], longest(text_of(node, "pattern")), text_of(node, "rewrite")
    parts = rewrite.split(r"\0")
    if not node.get_attr_value("replace_global", 1) or any("\\" in each for each in parts):
        raise ValueError(f"to replace the first match only, or by parts of what matched ({rewrite!r})")
    graph, removed = Nodes(context, node, name), _CLASS.fullmatch(pattern)
    if removed and not rewrite:
        kept = f"[{'' if removed['not'] else '^'}{removed['characters']}]+"
        pieces = graph.tokens(source, tokenexp=kept)
    else:
        tokens = graph.tokens(source, tokenexp=f"(?:{pattern})|{_between(pattern)}(?s:.)")
        matches = graph.make("RegexFullMatch", [tokens], BOOL, shape=[-1, -1], pattern=pattern)
        new: Any = strings(parts[0])
        for part in parts[1:]:
            new = graph.make("StringConcat", [new, tokens], STRING, shape=[-1, -1])
            new = graph.make("StringConcat", [new, strings(part)], STRING, shape=[-1, -1])
        pieces = graph.make("Where", [matches, new, tokens], STRING, shape=[-1, -1])
    graph.done(graph.like(graph.joined(pieces), source))


def _between(pattern: str) -> str:
    """Matches what a match cannot begin with, many characters at once; empty where that is not plain to see."""
    begin = re.match(rf"{_CLASS.pattern}|\\[dsw]|[^\\\[(.^$*+?{{|]", pattern)
    if not begin or "|" in _CLASS.sub("", pattern) or pattern[begin.end() : begin.end() + 1] in tuple("*?{"):
        return ""
    if begin["not"]:
        return f"[{begin['characters']}]+|"
    first = begin[0] if begin[0].startswith("\\") else re.escape(begin[0])
    return f"[^{begin['characters'] or first}]+|"


def _split_at(graph: Nodes, source: str, separator: str) -> tuple[str, str]:
    """Pieces ``[N, K]`` between separators, and which of them there are: one at least, as in TensorFlow."""
    flat = graph.flat(source, STRING)
    more = graph.make("Concat", [flat, strings("")], STRING, shape=[-1], axis=0)
    pieces, counts = graph.make_many(
        "StringSplit", [more], [STRING, INT64], shapes=[[-1, -1], [-1]], delimiter=separator
    )
    # Of empty texts only, onnxruntime makes no pieces at all.
    column = graph.make("Concat", [graph.make("Shape", [counts], INT64), np.array([1])], INT64, axis=0)
    empty = graph.make("Expand", [strings(""), column], STRING, shape=[-1, 1])
    pieces = graph.make("Concat", [pieces, empty], STRING, shape=[-1, -1], axis=1)
    ends = [np.array([0]), np.array([-1]), np.array([0])]
    pieces = graph.make("Slice", [pieces, *ends], STRING, shape=[-1, -1])
    counts = graph.make("Max", [graph.make("Slice", [counts, *ends], INT64), np.array([1])], INT64, shape=[-1])
    length = graph.make("Squeeze", [graph.make("Shape", [pieces], INT64, start=1)], INT64, shape=[])
    columns = graph.make("Range", [np.array(0), length, np.array(1)], INT64, shape=[-1])
    mask = graph.make("Less", [columns, graph.make("Unsqueeze", [counts, np.array([1])], INT64)], BOOL, shape=[-1, -1])
    return pieces, mask


def split(context: Graph, node: Node, name: str, _: list[str]) -> None:
    separator, source = constant_text(node, 1), node.input[0]
    if node.get_attr_value("maxsplit", -1) > 0:
        raise ValueError("a split with maxsplit, which onnxruntime has no operator for")
    graph = Nodes(context, node, name)
    if separator:
        pieces, mask = _split_at(graph, source, separator)
    else:
        pieces = graph.tokens(source, tokenexp=f"[^{_SPACE}]+")
        mask = graph.filled(pieces)
    _sparse(graph, pieces, mask)


def _sparse(graph: Nodes, pieces: str, mask: str) -> None:
    """Ends in indices, values and shape, as of a sparse tensor."""
    lengths = graph.make("ReduceSum", [graph.cast(mask, INT64), np.array([1])], INT64, shape=[-1], keepdims=0)
    longest = graph.make(
        "ReduceMax", [graph.make("Concat", [lengths, np.array([0])], INT64, axis=0)], INT64, keepdims=1
    )
    rows = graph.make("Shape", [pieces], INT64, shape=[1], end=1)
    graph.done(
        graph.indices(mask),
        graph.chosen(pieces, mask, STRING),
        graph.make("Concat", [rows, longest], INT64, shape=[2], axis=0),
    )


def strip(context: Graph, node: Node, name: str, _: list[str]) -> None:
    source = node.input[0]
    graph = Nodes(context, node, name)
    whole = graph.tokens(source, tokenexp=f"[^{_SPACE}](?s:.*[^{_SPACE}])?")
    graph.done(graph.like(graph.joined(whole), source))


def join(context: Graph, node: Node, name: str, _: list[str]) -> None:
    separator, (first, *others) = text_of(node, "separator"), list(node.input)
    graph = Nodes(context, node, name)
    for other in others:
        if separator:
            first = graph.make("StringConcat", [first, strings(separator)], STRING)
        first = graph.make("StringConcat", [first, other], STRING)
    graph.done(first)


def full_match(context: Graph, node: Node, name: str, _: list[str]) -> None:
    pattern, source = text_of(node, "pattern"), node.input[0]
    graph = Nodes(context, node, name)
    graph.done(graph.make("RegexFullMatch", [source], BOOL, pattern=pattern))


def equal(op: str, context: Graph, node: Node, name: str, _: list[str]) -> None:
    """Compares strings, too, which tf2onnx makes numbers of."""
    from tf2onnx.handler import tf_op

    if context.get_dtype(node.input[0]) != STRING:
        handler, arguments = tf_op.get_opsets()[""][11][op]
        handler(context, node, **arguments)
        return
    inputs = list(node.input)
    graph = Nodes(context, node, name)
    same = graph.make("StringEqual", inputs, BOOL)
    graph.done(same if op == "Equal" else graph.make("Not", [same], BOOL))


def as_string(context: Graph, node: Node, name: str, _: list[str]) -> None:
    if context.get_dtype(node.input[0]) not in _INTEGERS or node.get_attr_value("width", -1) != -1:
        raise ValueError("numbers as strings in another form than that of plain integers")
    source = node.input[0]
    graph = Nodes(context, node, name)
    graph.done(graph.cast(source, STRING))


def decode(context: Graph, node: Node, name: str, _: list[str]) -> None:
    """Characters, as strings of one each: ONNX has no numbers of them. All that they may be is encoded again."""
    _check_characters(context, node)
    source = node.input[0]
    graph = Nodes(context, node, name)
    pieces = graph.tokens(source, separators=[""])
    mask = graph.filled(pieces)
    graph.set_dtype(1, STRING)
    graph.done(graph.splits(mask), graph.chosen(pieces, mask, STRING))


def _check_characters(context: Graph, node: Node) -> None:
    waiting = [node.output[1]]
    if text_of(node, "input_encoding") != "UTF-8" or node.get_attr_value("replace_control_characters"):
        raise ValueError("characters of another encoding than UTF-8, or without control characters")
    while waiting:
        for consumer in context.find_output_consumers(waiting.pop()):
            if consumer.type in ("ExpandDims", "Reshape", "Identity", "Unsqueeze"):
                waiting.append(consumer.output[0])
            elif consumer.type == "UnicodeEncode":
                context_range = consumer.inputs[1]
                if context_range.type != "Range" or _constant_number(context_range, 2) != 1:
                    raise ValueError("characters that are joined again")
            elif consumer.type != "Shape":
                raise ValueError(f"the numbers of characters ({consumer.type}), for which ONNX has no operator")


def _constant_number(node: Node, index: int) -> Any:
    source = node.inputs[index]
    return np.asarray(source.get_tensor_value(as_list=False)).item() if source.is_const() else None


def encode(context: Graph, node: Node, name: str, _: list[str]) -> None:
    origin = node.inputs[0]
    while origin.type in ("ExpandDims", "Reshape", "Identity", "Unsqueeze"):
        origin = origin.inputs[0]
    if origin.type not in ("UnicodeDecode", "Compress"):
        raise ValueError("strings made of numbers of characters, for which ONNX has no operator")
    source = node.input[0]
    graph = Nodes(context, node, name)
    graph.done(source)
