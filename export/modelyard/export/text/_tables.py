"""Ragged rows, counts and crosses: what follows the words, in the form of handlers of tf2onnx."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from modelyard.export.text._hashes import FACTOR, Texts, Word, fingerprint
from modelyard.export.text._nodes import BOOL, FLOAT, INT64, STRING, UINT64, Nodes, strings, text_of

if TYPE_CHECKING:
    from tf2onnx.graph import Graph, Node


def cross(context: Graph, node: Node, name: str, _: list[str]) -> None:
    """``tf.sparse.cross_hashed`` of dense columns: FarmHash's fingerprints, mixed by its FingerprintCat64."""
    columns, dtypes = list(node.input), [context.get_dtype(each) for each in node.input]
    if node.get_attr_value("N") or not node.get_attr_value("hashed_output"):
        raise ValueError("a cross of sparse columns, or one that is not hashed")
    if any((context.get_shape(each) or [])[1:] != [1] for each in columns):
        raise ValueError("a cross of columns with several values")
    buckets, key = node.get_attr_value("num_buckets"), node.get_attr_value("hash_key")
    graph = Nodes(context, node, name)

    def mixed(value: Word) -> Word:
        return value ^ value >> 47

    crossed = Word(graph, graph.constant(np.array([[key]], np.uint64)))
    for column, dtype in zip(columns, dtypes, strict=True):
        if dtype == STRING:
            value = Word(
                graph, graph.make("Unsqueeze", [fingerprint(Texts(graph, column)).tensor, np.array([1])], UINT64)
            )
        else:
            value = Word(graph, graph.cast(graph.cast(column, INT64), UINT64))
        crossed = crossed ^ FACTOR ^ mixed(value * FACTOR) * FACTOR
        crossed = mixed(mixed(crossed * FACTOR) * FACTOR)
    found = (crossed % (buckets or np.iinfo(np.int64).max)).tensor
    values = graph.flat(graph.cast(found, INT64), INT64)
    one = graph.make("Less", [found, found], BOOL, shape=[-1, 1])
    graph.done(
        graph.indices(graph.make("Not", [one], BOOL, shape=[-1, 1])), values,
        graph.make("Shape", [found], INT64, shape=[2]),
    )  # fmt: skip


def _grid(graph: Nodes, splits: str) -> tuple[str, str, str]:
    """Of ragged rows the places of their values ``[N, K]``, the columns ``[K]``, and the lengths ``[N, 1]``."""
    splits = graph.cast(splits, INT64)
    axis = np.array([0])
    begins = graph.make("Slice", [splits, np.array([0]), np.array([-1]), axis], INT64, shape=[-1])
    ends = graph.make("Slice", [splits, np.array([1]), np.array([np.iinfo(np.int64).max]), axis], INT64, shape=[-1])
    lengths = graph.make("Sub", [ends, begins], INT64, shape=[-1])
    # Of no rows at all, too.
    some = graph.make("Concat", [lengths, np.array([0])], INT64, shape=[-1], axis=0)
    longest = graph.make("ReduceMax", [some], INT64, shape=[], keepdims=0)
    columns = graph.make("Range", [np.array(0), longest, np.array(1)], INT64, shape=[-1])
    begins, lengths = (
        graph.make("Unsqueeze", [each, np.array([1])], INT64, shape=[-1, 1]) for each in (begins, lengths)
    )
    return graph.make("Add", [begins, columns], INT64, shape=[-1, -1]), columns, lengths


def _gathered(graph: Nodes, values: str, places: str, dtype: int) -> str:
    """The values at places, and anything at places behind the last value."""
    zero = strings("") if dtype == STRING else graph.cast(graph.constant(np.array([0])), dtype)
    more = graph.make("Concat", [values, zero], dtype, shape=[-1], axis=0)
    within = graph.make("Min", [places, graph.make("Size", [values], INT64, shape=[])], INT64, shape=[-1, -1])
    return graph.make("Gather", [more, within], dtype, shape=[-1, -1], axis=0)


def ngrams(context: Graph, node: Node, name: str, _: list[str]) -> None:
    if node.get_attr_value("pad_width") or node.get_attr_value("preserve_short_sequences"):
        raise ValueError("n-grams with padding, or of what is too short for one")
    (data, splits), separator = list(node.input), text_of(node, "separator")
    widths = list(node.get_attr_value("ngram_widths"))
    splits_dtype = node.output_dtypes[1]
    graph = Nodes(context, node, name)
    places, columns, lengths = _grid(graph, splits)
    pieces, masks = [], []
    for width in widths:
        gram = ""
        for offset in range(width):
            place = graph.make("Add", [places, np.array(offset)], INT64, shape=[-1, -1])
            word = _gathered(graph, data, place, STRING)
            if gram and separator:
                gram = graph.make("StringConcat", [gram, strings(separator)], STRING, shape=[-1, -1])
            gram = graph.make("StringConcat", [gram, word], STRING, shape=[-1, -1]) if gram else word
        pieces.append(gram)
        end = graph.make("Add", [columns, np.array(width)], INT64, shape=[-1])
        masks.append(graph.make("LessOrEqual", [end, lengths], BOOL, shape=[-1, -1]))
    every = graph.make("Concat", pieces, STRING, shape=[-1, -1], axis=1)
    mask = graph.make("Concat", masks, BOOL, shape=[-1, -1], axis=1)
    graph.done(graph.chosen(every, mask, STRING), graph.cast(graph.splits(mask), splits_dtype))


def ragged_counts(context: Graph, node: Node, name: str, _: list[str]) -> None:
    """How often each number is in each ragged row, or whether it is."""
    splits, values, size, weights = node.input
    _check_weights(context, weights)
    is_binary = bool(node.get_attr_value("binary_output"))
    graph = Nodes(context, node, name)
    places, columns, lengths = _grid(graph, splits)
    numbers = _gathered(graph, graph.cast(values, INT64), places, INT64)
    there = graph.make("Less", [columns, lengths], BOOL, shape=[-1, -1])
    graph.done(_counts(graph, numbers, there, size, is_binary=is_binary))


def counts(context: Graph, node: Node, name: str, _: list[str]) -> None:
    """The same of rows ``[N, K]``; onnxruntime fails on tf2onnx's way to count where there are none."""
    from tf2onnx.handler import tf_op

    values, size, weights = node.input
    if len(context.get_shape(values) or []) != 2:
        handler, arguments = tf_op.get_opsets()[""][13]["DenseBincount"]
        handler(context, node, **arguments)
        return
    _check_weights(context, weights)
    is_binary = bool(node.get_attr_value("binary_output"))
    graph = Nodes(context, node, name)
    numbers = graph.cast(values, INT64)
    there = graph.make("GreaterOrEqual", [numbers, np.array(0)], BOOL, shape=[-1, -1])
    graph.done(_counts(graph, numbers, there, size, is_binary=is_binary))


def _check_weights(context: Graph, weights: str) -> None:
    if 0 not in (context.get_shape(weights) or []):
        raise ValueError("counts with weights, for which ONNX has no operator")


def _counts(graph: Nodes, numbers: str, there: str, size: str, *, is_binary: bool) -> str:
    """Counts below a size ``[N, size]``, of numbers ``[N, K]`` where they are there."""
    size, one = graph.cast(size, INT64), np.array([1])
    counted = graph.make(
        "And", [there, graph.make("Less", [numbers, size], BOOL, shape=[-1, -1])], BOOL, shape=[-1, -1]
    )
    rows = graph.make("Squeeze", [graph.make("Shape", [numbers], INT64, shape=[1], end=1)], INT64, shape=[])
    row = graph.make("Range", [np.array(0), rows, np.array(1)], INT64, shape=[-1])
    begins = graph.make("Mul", [graph.make("Unsqueeze", [row, one], INT64, shape=[-1, 1]), size], INT64, shape=[-1, 1])
    places = graph.chosen(graph.make("Add", [begins, numbers], INT64, shape=[-1, -1]), counted, INT64)
    total = graph.make("Reshape", [graph.make("Mul", [rows, size], INT64, shape=[]), one], INT64, shape=[1])
    nothing = graph.make("Expand", [np.array([0], np.float32), total], FLOAT, shape=[-1])
    found = graph.make("Shape", [places], INT64, shape=[1])
    ones = graph.make("Expand", [np.array([1], np.float32), found], FLOAT, shape=[-1])
    made = graph.make(
        "ScatterElements", [nothing, places, ones], FLOAT, shape=[-1], axis=0, reduction="none" if is_binary else "add"
    )
    shape = [graph.make("Reshape", [each, one], INT64, shape=[1]) for each in (rows, size)]
    both = graph.make("Concat", shape, INT64, shape=[2], axis=0)
    return graph.cast(graph.make("Reshape", [made, both], FLOAT, shape=[-1, -1], allowzero=1), graph.dtype(0))
