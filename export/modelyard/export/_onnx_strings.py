"""Operators over strings, of which tf2onnx 1.17 has few and some wrong, in the form of its own handlers.

All are made of what onnxruntime itself has. onnxruntime-extensions is not needed, and would not help: it replaces
regular expressions twelve times as slowly, and its hashes are not TensorFlow's since 0.15.

onnxruntime's operators over strings refuse no rows at all, so each gets one row more, which is taken away again.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

Handler = Callable[[Any, Any, str, list[str]], None]
#: Operators of ONNX's operator set 20, of which tf2onnx 1.17 knows nothing: by the name that they have until then.
STRING_OPERATORS = {
    "StringEqual": "Equal",
    **{each: each for each in ("RegexFullMatch", "StringConcat", "StringSplit")},
}
STRING_OPSET, STRING_IR = 20, 9
#: onnx.TensorProto's numbers: to import onnx takes a second.
_FLOAT, _INT64, _STRING, _BOOL, _UINT64 = 1, 7, 8, 9, 13
_INTEGERS = frozenset({2, 3, 4, 5, 6, 7, 12, 13})
#: Of onnxruntime: it splits by regular expressions.
_OWN_DOMAIN = "com.microsoft"
#: What C's isspace() takes for one, in RE2's words: TensorFlow splits and strips by it.
_SPACE = r" \t\n\v\f\r"
#: A regular expression that is one class of characters.
_CLASS = re.compile(r"\[(?P<not>\^?)(?P<characters>(?:\\.|[^\[\]\\])+)\]")
#: The multiplier of FarmHash's FingerprintCat64.
_HASH_FACTOR = 0xC6A4A7935BD1E995


class _Graph:
    """Makes nodes in place of one of TensorFlow.

    Args:
        context: tf2onnx's graph.
        node: Is removed.
        name: Its name, which the last node gets.
    """

    def __init__(self, context: Any, node: Any, name: str) -> None:
        self._context, self._name, self._outputs = context, name, list(node.output)
        self._shapes, self._dtypes = node.output_shapes, node.output_dtypes
        context.remove_node(name)

    def make(
        self, op: str, inputs: Sequence[Any], dtype: int, *, shape: Sequence[int] | None = None, domain: str = "",
        **attributes: Any,
    ) -> str:  # fmt: skip
        """A node of one output; inputs are names of tensors or constants."""
        return self.make_many(op, inputs, [dtype], shapes=[shape], domain=domain, **attributes)[0]

    def make_many(
        self, op: str, inputs: Sequence[Any], dtypes: Sequence[int], *, shapes: Sequence[Sequence[int] | None] = (),
        domain: str = "", branches: dict[str, Any] | None = None, **attributes: Any,
    ) -> list[str]:  # fmt: skip
        """A node of several outputs."""
        from tf2onnx import utils

        shapes = shapes or [None] * len(dtypes)
        made = self._context.make_node(
            op, [self.constant(each) for each in inputs], attr=attributes, name=utils.make_name(f"{self._name}/{op}"),
            output_count=len(dtypes), shapes=list(shapes), dtypes=list(dtypes), domain=domain, branches=branches,
        )  # fmt: skip
        return list(made.output)

    def constant(self, value: Any) -> str:
        """The name of a constant; what is a name already stays."""
        from tf2onnx import utils

        if isinstance(value, str):
            return value
        return str(self._context.make_const(utils.make_name(f"{self._name}/const"), value).output[0])

    def done(self, *tensors: str) -> None:
        """Gives tensors the names of the outputs."""
        for index, (tensor, output) in enumerate(zip(tensors, self._outputs, strict=True)):
            self._context.make_node(
                "Identity", [tensor], outputs=[output], name=f"{self._name}/output/{index}",
                shapes=[self._shapes[index] or self._context.get_shape(tensor)], dtypes=[self._dtypes[index]],
            )  # fmt: skip

    def set_dtype(self, index: int, dtype: int) -> None:
        """Makes an output of another dtype than TensorFlow's."""
        self._dtypes[index] = dtype

    def cast(self, tensor: str, dtype: int) -> str:
        return self.make("Cast", [tensor], dtype, shape=self._context.get_shape(tensor), to=dtype)

    def flat(self, tensor: str, dtype: int) -> str:
        return self.make("Reshape", [tensor, np.array([-1])], dtype, shape=[-1])

    def rows(self, texts: str, op: str, **attributes: Any) -> str:
        """Applies an operator of onnxruntime to the values of a tensor; the first axis is that of the values."""
        more = self.make("Concat", [self.flat(texts, _STRING), _strings("")], _STRING, shape=[-1], axis=0)
        made = self.make(op, [more], _STRING, **attributes)
        return self.make("Slice", [made, np.array([0]), np.array([-1]), np.array([0])], _STRING)

    def tokens(self, texts: str, **attributes: Any) -> str:
        """The tokens of each text, ``[N, K]``, filled up with empty strings; no token is empty."""
        made = self.rows(texts, "Tokenizer", domain=_OWN_DOMAIN, mark=0, pad_value="", mincharnum=1, **attributes)
        # Of no text at all onnxruntime makes one axis.
        count = self.make("Size", [self.flat(texts, _STRING)], _INT64, shape=[])
        rows = self.make("Reshape", [count, np.array([1])], _INT64, shape=[1])
        length = self.make("Shape", [made], _INT64, shape=[1], start=-1)
        return self.make(
            "Reshape", [made, self.make("Concat", [rows, length], _INT64, shape=[2], axis=0)], _STRING, shape=[-1, -1],
            allowzero=1,
        )  # fmt: skip

    def joined(self, pieces: str) -> str:
        """Joins pieces ``[N, K]`` to ``[N]``, column by column."""
        context = self._context
        body = context.create_new_graph_with_same_config()
        body.parent_graph = context
        index, go_on, before, goes_on, piece, after = (
            f"{self._name}/joined/{each}" for each in ("index", "go_on", "before", "goes_on", "piece", "after")
        )
        body.add_graph_input(index, _INT64, [])
        body.add_graph_input(go_on, _BOOL, [])
        body.add_graph_input(before, _STRING, [-1])
        body.make_node("Identity", [go_on], outputs=[goes_on], shapes=[[]], dtypes=[_BOOL])
        body.make_node("Gather", [pieces, index], attr={"axis": 1}, outputs=[piece], shapes=[[-1]], dtypes=[_STRING])
        body.make_node("StringConcat", [before, piece], outputs=[after], shapes=[[-1]], dtypes=[_STRING])
        body.add_graph_output(goes_on, _BOOL, [])
        body.add_graph_output(after, _STRING, [-1])
        size = self.make("Shape", [pieces], _INT64, shape=[2])
        rows, columns = (
            self.make("Gather", [size, np.array(each)], _INT64, shape=np.shape(each), axis=0) for each in ([0], 1)
        )
        nothing = self.make("Expand", [_strings(""), rows], _STRING, shape=[-1])
        return self.make_many(
            "Loop", [columns, np.array(True), nothing], [_STRING], shapes=[[-1]], branches={"body": body}
        )[0]

    def like(self, values: str, source: str, dtype: int = _STRING) -> str:
        """Values in the shape of another tensor."""
        shape = self.make("Shape", [source], _INT64)
        return self.make("Reshape", [values, shape], dtype, allowzero=1)

    def indices(self, mask: str) -> str:
        """Where a mask ``[N, K]`` holds, ``[found, 2]``."""
        found = self.make("NonZero", [mask], _INT64, shape=[2, -1])
        return self.make("Transpose", [found], _INT64, shape=[-1, 2], perm=[1, 0])

    def chosen(self, values: str, mask: str, dtype: int) -> str:
        """The values ``[N, K]`` where a mask holds, ``[found]``."""
        return self.make("Compress", [self.flat(values, dtype), self.flat(mask, _BOOL)], dtype, shape=[-1])

    def splits(self, mask: str) -> str:
        """Where the rows of what a mask ``[N, K]`` chooses begin and end, ``[N + 1]``."""
        lengths = self.make("ReduceSum", [self.cast(mask, _INT64), np.array([1])], _INT64, shape=[-1], keepdims=0)
        ends = self.make("CumSum", [lengths, np.array(0)], _INT64, shape=[-1])
        return self.make("Concat", [np.array([0]), ends], _INT64, shape=[-1], axis=0)

    def filled(self, pieces: str) -> str:
        return self.make("Not", [self.make("StringEqual", [pieces, _strings("")], _BOOL)], _BOOL)


def _strings(*values: str) -> Any:
    return np.array(values, object)


def _text(node: Any, attribute: str) -> str:
    value = node.get_attr_value(attribute, b"")
    return value.decode() if isinstance(value, bytes) else str(value)


def _constant_text(node: Any, index: int) -> str:
    if not node.inputs[index].is_const():
        raise ValueError(f"input {index} of {node.type} is no constant")
    value = np.asarray(node.inputs[index].get_tensor_value(as_list=False)).item()
    return value.decode() if isinstance(value, bytes) else str(value)


def _case(action: str, context: Any, node: Any, name: str, _: list[str]) -> None:
    """Changes ASCII letters only, as TensorFlow does by default and onnxruntime in the locale C."""
    if _text(node, "encoding"):
        raise ValueError(
            f"{node.type} of all of Unicode: onnxruntime and TensorFlow differ over it; leave encoding out"
        )
    source = node.input[0]
    graph = _Graph(context, node, name)
    changed = graph.rows(source, "StringNormalizer", case_change_action=action, locale="C")
    graph.done(graph.like(changed, source))


def _replace(context: Any, node: Any, name: str, _: list[str]) -> None:
    """Splits texts into what matches and what does not, and joins them again: ONNX cannot replace.

    Where a text goes on after a piece, no expression knows what was before: those that ask are refused early.
    """
    source, pattern, rewrite = node.input[0], _text(node, "pattern"), _text(node, "rewrite")
    parts = rewrite.split(r"\0")
    if not node.get_attr_value("replace_global", 1) or any("\\" in each for each in parts):
        raise ValueError(f"to replace the first match only, or by parts of what matched ({rewrite!r})")
    graph, removed = _Graph(context, node, name), _CLASS.fullmatch(pattern)
    if removed and not rewrite:
        kept = f"[{'' if removed['not'] else '^'}{removed['characters']}]+"
        pieces = graph.tokens(source, tokenexp=kept)
    else:
        tokens = graph.tokens(source, tokenexp=f"(?:{pattern})|{_between(pattern)}(?s:.)")
        matches = graph.make("RegexFullMatch", [tokens], _BOOL, shape=[-1, -1], pattern=pattern)
        new: Any = _strings(parts[0])
        for part in parts[1:]:
            new = graph.make("StringConcat", [new, tokens], _STRING, shape=[-1, -1])
            new = graph.make("StringConcat", [new, _strings(part)], _STRING, shape=[-1, -1])
        pieces = graph.make("Where", [matches, new, tokens], _STRING, shape=[-1, -1])
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


def _split_at(graph: _Graph, source: str, separator: str) -> tuple[str, str]:
    """Pieces ``[N, K]`` between separators, and which of them there are: one at least, as in TensorFlow."""
    flat = graph.flat(source, _STRING)
    more = graph.make("Concat", [flat, _strings("")], _STRING, shape=[-1], axis=0)
    pieces, counts = graph.make_many(
        "StringSplit", [more], [_STRING, _INT64], shapes=[[-1, -1], [-1]], delimiter=separator
    )
    # Of empty texts only, onnxruntime makes no pieces at all.
    pieces = graph.make(
        "Concat",
        [
            pieces,
            graph.make(
                "Expand",
                [
                    _strings(""),
                    graph.make("Concat", [graph.make("Shape", [counts], _INT64), np.array([1])], _INT64, axis=0),
                ],
                _STRING,
                shape=[-1, 1],
            ),
        ],
        _STRING,
        shape=[-1, -1],
        axis=1,
    )
    ends = [np.array([0]), np.array([-1]), np.array([0])]
    pieces = graph.make("Slice", [pieces, *ends], _STRING, shape=[-1, -1])
    counts = graph.make("Max", [graph.make("Slice", [counts, *ends], _INT64), np.array([1])], _INT64, shape=[-1])
    length = graph.make("Squeeze", [graph.make("Shape", [pieces], _INT64, start=1)], _INT64, shape=[])
    columns = graph.make("Range", [np.array(0), length, np.array(1)], _INT64, shape=[-1])
    mask = graph.make(
        "Less", [columns, graph.make("Unsqueeze", [counts, np.array([1])], _INT64)], _BOOL, shape=[-1, -1]
    )
    return pieces, mask


def _split(context: Any, node: Any, name: str, _: list[str]) -> None:
    separator, source = _constant_text(node, 1), node.input[0]
    if node.get_attr_value("maxsplit", -1) > 0:
        raise ValueError("a split with maxsplit, which onnxruntime has no operator for")
    graph = _Graph(context, node, name)
    if separator:
        pieces, mask = _split_at(graph, source, separator)
    else:
        pieces = graph.tokens(source, tokenexp=f"[^{_SPACE}]+")
        mask = graph.filled(pieces)
    _sparse(graph, pieces, mask)


def _sparse(graph: _Graph, pieces: str, mask: str) -> None:
    """Ends in indices, values and shape, as of a sparse tensor."""
    lengths = graph.make("ReduceSum", [graph.cast(mask, _INT64), np.array([1])], _INT64, shape=[-1], keepdims=0)
    longest = graph.make(
        "ReduceMax", [graph.make("Concat", [lengths, np.array([0])], _INT64, axis=0)], _INT64, keepdims=1
    )
    rows = graph.make("Shape", [pieces], _INT64, shape=[1], end=1)
    graph.done(
        graph.indices(mask),
        graph.chosen(pieces, mask, _STRING),
        graph.make("Concat", [rows, longest], _INT64, shape=[2], axis=0),
    )


def _strip(context: Any, node: Any, name: str, _: list[str]) -> None:
    source = node.input[0]
    graph = _Graph(context, node, name)
    whole = graph.tokens(source, tokenexp=f"[^{_SPACE}](?s:.*[^{_SPACE}])?")
    graph.done(graph.like(graph.joined(whole), source))


def _join(context: Any, node: Any, name: str, _: list[str]) -> None:
    separator, (first, *others) = _text(node, "separator"), list(node.input)
    graph = _Graph(context, node, name)
    for other in others:
        if separator:
            first = graph.make("StringConcat", [first, _strings(separator)], _STRING)
        first = graph.make("StringConcat", [first, other], _STRING)
    graph.done(first)


def _full_match(context: Any, node: Any, name: str, _: list[str]) -> None:
    pattern, source = _text(node, "pattern"), node.input[0]
    graph = _Graph(context, node, name)
    graph.done(graph.make("RegexFullMatch", [source], _BOOL, pattern=pattern))


def _equal(op: str, context: Any, node: Any, name: str, _: list[str]) -> None:
    """Compares strings, too, which tf2onnx makes numbers of."""
    from tf2onnx.handler import tf_op

    if context.get_dtype(node.input[0]) != _STRING:
        handler, arguments = tf_op.get_opsets()[""][11][op]
        handler(context, node, **arguments)
        return
    inputs = list(node.input)
    graph = _Graph(context, node, name)
    same = graph.make("StringEqual", inputs, _BOOL)
    graph.done(same if op == "Equal" else graph.make("Not", [same], _BOOL))


def _as_string(context: Any, node: Any, name: str, _: list[str]) -> None:
    if context.get_dtype(node.input[0]) not in _INTEGERS or node.get_attr_value("width", -1) != -1:
        raise ValueError("numbers as strings in another form than that of plain integers")
    source = node.input[0]
    graph = _Graph(context, node, name)
    graph.done(graph.cast(source, _STRING))


def _cross(context: Any, node: Any, name: str, _: list[str]) -> None:
    """``tf.sparse.cross_hashed`` of dense columns: FarmHash's fingerprints, mixed by its FingerprintCat64."""
    columns, dtypes = list(node.input), [context.get_dtype(each) for each in node.input]
    if node.get_attr_value("N") or not node.get_attr_value("hashed_output"):
        raise ValueError("a cross of sparse columns, or one that is not hashed")
    if _STRING in dtypes:
        raise ValueError("a cross of strings, for whose hash ONNX has no operator")
    if any((context.get_shape(each) or [])[1:] != [1] for each in columns):
        raise ValueError("a cross of columns with several values")
    buckets, key = node.get_attr_value("num_buckets"), node.get_attr_value("hash_key")
    graph = _Graph(context, node, name)

    def bits(op: str, *inputs: Any, **attributes: Any) -> str:
        return graph.make(op, inputs, _UINT64, shape=[-1, 1], **attributes)

    def mixed(value: Any) -> str:
        return bits("BitwiseXor", value, bits("BitShift", value, np.array(47, np.uint64), direction="RIGHT"))

    factor = np.array(_HASH_FACTOR, np.uint64)
    found: Any = np.array([[key]], np.uint64)
    for column in columns:
        value = graph.cast(graph.cast(column, _INT64), _UINT64)
        found = bits(
            "BitwiseXor", bits("BitwiseXor", found, factor), bits("Mul", mixed(bits("Mul", value, factor)), factor)
        )
        found = mixed(bits("Mul", mixed(bits("Mul", found, factor)), factor))
    found = bits("Mod", found, np.array(buckets or np.iinfo(np.int64).max, np.uint64))
    values = graph.flat(graph.cast(found, _INT64), _INT64)
    one = graph.make("Less", [found, found], _BOOL, shape=[-1, 1])
    graph.done(
        graph.indices(graph.make("Not", [one], _BOOL, shape=[-1, 1])), values,
        graph.make("Shape", [found], _INT64, shape=[2]),
    )  # fmt: skip


def _decode(context: Any, node: Any, name: str, _: list[str]) -> None:
    """Characters, as strings of one each: ONNX has no numbers of them. All that they may be is encoded again."""
    _check_characters(context, node)
    source = node.input[0]
    graph = _Graph(context, node, name)
    pieces = graph.tokens(source, separators=[""])
    mask = graph.filled(pieces)
    graph.set_dtype(1, _STRING)
    graph.done(graph.splits(mask), graph.chosen(pieces, mask, _STRING))


def _check_characters(context: Any, node: Any) -> None:
    waiting = [node.output[1]]
    if _text(node, "input_encoding") != "UTF-8" or node.get_attr_value("replace_control_characters"):
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


def _constant_number(node: Any, index: int) -> Any:
    source = node.inputs[index]
    return np.asarray(source.get_tensor_value(as_list=False)).item() if source.is_const() else None


def _encode(context: Any, node: Any, name: str, _: list[str]) -> None:
    origin = node.inputs[0]
    while origin.type in ("ExpandDims", "Reshape", "Identity", "Unsqueeze"):
        origin = origin.inputs[0]
    if origin.type not in ("UnicodeDecode", "Compress"):
        raise ValueError("strings made of numbers of characters, for which ONNX has no operator")
    source = node.input[0]
    graph = _Graph(context, node, name)
    graph.done(source)


def _grid(graph: _Graph, splits: str, longest: Any = None) -> tuple[str, str, str]:
    """Of ragged rows the places of their values ``[N, K]``, the columns ``[K]``, and the lengths ``[N, 1]``.

    Args:
        graph: Gets the nodes.
        splits: Where rows begin and end, ``[N + 1]``.
        longest: K, a scalar; None for the longest row's.
    """
    splits = graph.cast(splits, _INT64)
    axis = np.array([0])
    begins = graph.make("Slice", [splits, np.array([0]), np.array([-1]), axis], _INT64, shape=[-1])
    ends = graph.make("Slice", [splits, np.array([1]), np.array([np.iinfo(np.int64).max]), axis], _INT64, shape=[-1])
    lengths = graph.make("Sub", [ends, begins], _INT64, shape=[-1])
    if longest is None:
        # Of no rows at all, too.
        some = graph.make("Concat", [lengths, np.array([0])], _INT64, shape=[-1], axis=0)
        longest = graph.make("ReduceMax", [some], _INT64, shape=[], keepdims=0)
    columns = graph.make("Range", [np.array(0), longest, np.array(1)], _INT64, shape=[-1])
    begins, lengths = (
        graph.make("Unsqueeze", [each, np.array([1])], _INT64, shape=[-1, 1]) for each in (begins, lengths)
    )
    return graph.make("Add", [begins, columns], _INT64, shape=[-1, -1]), columns, lengths


def _gathered(graph: _Graph, values: str, places: str, dtype: int, rank: int = 1) -> str:
    """The values at places, and anything at places behind the last value."""
    shape = graph.make("Shape", [values], _INT64, shape=[rank])
    inner = graph.make("Slice", [shape, np.array([1]), np.array([rank]), np.array([0])], _INT64)
    one = graph.make("Concat", [np.array([1]), inner], _INT64, shape=[rank], axis=0)
    zero = _strings("") if dtype == _STRING else graph.cast(graph.constant(np.array([0])), dtype)
    more = graph.make("Concat", [values, graph.make("Expand", [zero, one], dtype)], dtype, axis=0)
    last = graph.make("Gather", [shape, np.array(0)], _INT64, shape=[], axis=0)
    within = graph.make("Min", [places, last], _INT64, shape=[-1, -1])
    return graph.make("Gather", [more, within], dtype, shape=[-1] * (rank + 1), axis=0)


def _to_dense(context: Any, node: Any, name: str, _: list[str]) -> None:
    """Ragged rows filled up. tf2onnx makes tensors of any size where no row has a value."""
    kinds, shape = node.get_attr_value("row_partition_types"), _constant_shape(node.inputs[0])
    rank, dtype = len(context.get_shape(node.input[1]) or []), context.get_dtype(node.input[1])
    if kinds not in ([b"ROW_SPLITS"], [b"FIRST_DIM_SIZE", b"VALUE_ROWIDS"]) or shape[:1] not in ([], [-1]) or not rank:
        raise ValueError("rows of several ragged dimensions, or of a number that is not that of the batch")
    _, values, default, *partition = node.input
    graph = _Graph(context, node, name)
    splits = partition[0] if len(kinds) == 1 else _splits_of(graph, partition[1], partition[0])
    length = None if shape[1:2] in ([], [-1]) else np.array(shape[1])
    places, columns, lengths = _grid(graph, splits, length)
    there = graph.make("Less", [columns, lengths], _BOOL, shape=[-1, -1])
    if rank > 1:
        there = graph.make("Unsqueeze", [there, np.arange(2, rank + 1)], _BOOL, shape=[-1] * (rank + 1))
    dense = _gathered(graph, values, places, dtype, rank)
    graph.done(graph.make("Where", [there, dense, default], dtype))


def _constant_shape(node: Any) -> list[int]:
    """A shape, ``[]`` where it is left open."""
    if not node.is_const():
        raise ValueError("rows filled up to a length that is computed")
    return [int(each) for each in np.atleast_1d(node.get_tensor_value(as_list=False))] if node.output_shapes[0] else []


def _splits_of(graph: _Graph, row_ids: str, rows: str) -> str:
    count = graph.make("Reshape", [graph.cast(rows, _INT64), np.array([1])], _INT64, shape=[1])
    row_ids = graph.cast(row_ids, _INT64)
    ones = graph.make("Expand", [np.array([1]), graph.make("Shape", [row_ids], _INT64)], _INT64, shape=[-1])
    zeros = graph.make("Expand", [np.array([0]), count], _INT64, shape=[-1])
    lengths = graph.make("ScatterElements", [zeros, row_ids, ones], _INT64, shape=[-1], axis=0, reduction="add")
    ends = graph.make("CumSum", [lengths, np.array(0)], _INT64, shape=[-1])
    return graph.make("Concat", [np.array([0]), ends], _INT64, shape=[-1], axis=0)


def _ngrams(context: Any, node: Any, name: str, _: list[str]) -> None:
    if node.get_attr_value("pad_width") or node.get_attr_value("preserve_short_sequences"):
        raise ValueError("n-grams with padding, or of what is too short for one")
    (data, splits), separator = list(node.input), _text(node, "separator")
    widths = list(node.get_attr_value("ngram_widths"))
    splits_dtype = node.output_dtypes[1]
    graph = _Graph(context, node, name)
    places, columns, lengths = _grid(graph, splits)
    pieces, masks = [], []
    for width in widths:
        gram = ""
        for offset in range(width):
            place = graph.make("Add", [places, np.array(offset)], _INT64, shape=[-1, -1])
            word = _gathered(graph, data, place, _STRING)
            if gram and separator:
                gram = graph.make("StringConcat", [gram, _strings(separator)], _STRING, shape=[-1, -1])
            gram = graph.make("StringConcat", [gram, word], _STRING, shape=[-1, -1]) if gram else word
        pieces.append(gram)
        end = graph.make("Add", [columns, np.array(width)], _INT64, shape=[-1])
        masks.append(graph.make("LessOrEqual", [end, lengths], _BOOL, shape=[-1, -1]))
    every = graph.make("Concat", pieces, _STRING, shape=[-1, -1], axis=1)
    mask = graph.make("Concat", masks, _BOOL, shape=[-1, -1], axis=1)
    graph.done(graph.chosen(every, mask, _STRING), graph.cast(graph.splits(mask), splits_dtype))


def _ragged_counts(context: Any, node: Any, name: str, _: list[str]) -> None:
    """How often each number is in each row, or whether it is."""
    splits, values, size, weights = node.input
    if 0 not in (context.get_shape(weights) or []):
        raise ValueError("counts with weights")
    is_binary, dtype = bool(node.get_attr_value("binary_output")), node.output_dtypes[0]
    graph = _Graph(context, node, name)
    places, columns, lengths = _grid(graph, splits)
    size = graph.cast(size, _INT64)
    dense = _gathered(graph, graph.cast(values, _INT64), places, _INT64)
    counted = graph.make(
        "And", [graph.make("Less", [columns, lengths], _BOOL), graph.make("Less", [dense, size], _BOOL)], _BOOL
    )
    count = graph.make("Squeeze", [graph.make("Shape", [places], _INT64, shape=[1], end=1)], _INT64, shape=[])
    rows = graph.make(
        "Unsqueeze", [graph.make("Range", [np.array(0), count, np.array(1)], _INT64), np.array([1])], _INT64
    )
    where = graph.make("Add", [graph.make("Mul", [rows, size], _INT64), dense], _INT64, shape=[-1, -1])
    chosen = graph.chosen(where, counted, _INT64)
    total = graph.make("Reshape", [graph.make("Mul", [count, size], _INT64), np.array([1])], _INT64, shape=[1])
    nothing = graph.make("Expand", [np.array([0], np.float32), total], _FLOAT, shape=[-1])
    ones = graph.make("Expand", [np.array([1], np.float32), graph.make("Shape", [chosen], _INT64)], _FLOAT, shape=[-1])
    counts = graph.make(
        "ScatterElements", [nothing, chosen, ones], _FLOAT, shape=[-1], axis=0,
        reduction="none" if is_binary else "add",
    )  # fmt: skip
    shape = graph.make(
        "Concat", [graph.make("Reshape", [each, np.array([1])], _INT64) for each in (count, size)], _INT64, axis=0
    )
    graph.done(graph.cast(graph.make("Reshape", [counts, shape], _FLOAT, shape=[-1, -1], allowzero=1), dtype))


def make_string_handlers() -> dict[str, Handler]:
    """Handlers by TensorFlow's name of the operator, for :func:`modelyard.export._onnx_handlers.make_handlers`."""
    return {
        "AsString": _as_string,
        "Equal": partial(_equal, "Equal"),
        "NotEqual": partial(_equal, "NotEqual"),
        "RaggedBincount": _ragged_counts,
        "RaggedTensorToTensor": _to_dense,
        "SparseCross": _cross,
        "StaticRegexFullMatch": _full_match,
        "StaticRegexReplace": _replace,
        "StringJoin": _join,
        "StringLower": partial(_case, "LOWER"),
        "StringNGrams": _ngrams,
        "StringSplitV2": _split,
        "StringStrip": _strip,
        "StringUpper": partial(_case, "UPPER"),
        "UnicodeDecode": _decode,
        "UnicodeEncode": _encode,
    }
