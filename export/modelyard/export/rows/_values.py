"""What a tensor has to do with the rows of a batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import tensorflow as tf

Kind = Literal["constant", "rows", "sizes", "list", "mixed", "unknown"]
Dims = tuple[int | None, ...]


@dataclass(frozen=True, kw_only=True)
class Value:
    """What is known of a tensor, whatever the numbers in it."""

    #: ``constant``: the same for every batch of examples of the same inner shapes. ``rows``: each index along ``axis``
    #: belongs to one row of the batch, the rows follow each other in their order with as many indices each, and what is
    #: there is computed from that row alone. ``sizes``: a scalar or vector of sizes, those in ``marks`` of which grow
    #: with the number of rows. ``list``: a list of tensors like ``item``. ``mixed``: computed from several rows, or
    #: from their number or place. ``unknown``: no rule says.
    kind: Kind
    #: Of ``rows``, counted from the first.
    axis: int = 0
    #: Of ``sizes``: whether each grows with the number of rows; None where that is not known of each.
    marks: tuple[bool, ...] | None = None
    #: Sizes, None where one may be any; None for unknown rank.
    dims: Dims | None = None
    #: Of a list; None while it is empty.
    item: Value | None = None
    #: Of ``mixed`` and ``unknown``: a sentence about the operation that is to blame.
    why: str = ""


class Undecided(Exception):
    """An operation is used in a way that no rule covers."""


class Mixed(Exception):
    """An operation computes something from several rows, or from their number or place."""


def constant(dims: Dims | None = None) -> Value:
    """A tensor that has nothing to do with the batch."""
    return Value(kind="constant", dims=dims)


def rows(axis: int, dims: Dims | None = None) -> Value:
    """A tensor whose rows are along an axis."""
    return Value(kind="rows", axis=axis, dims=dims)


def sizes(marks: Iterable[bool] | None) -> Value:
    """Sizes; a constant where none of them grows with the number of rows."""
    known = None if marks is None else tuple(marks)
    return constant((len(known),)) if known is not None and not any(known) else Value(kind="sizes", marks=known)


def rank(value: Value) -> int:
    """The number of dimensions; raises where it is not known."""
    if value.dims is None:
        raise Undecided("a tensor of unknown rank")
    return len(value.dims)


def marks_of(value: Value) -> tuple[bool, ...]:
    """Which of the sizes grow with the number of rows; raises where that is not known of each."""
    if value.kind == "constant" and value.dims is not None and len(value.dims) <= 1 and None not in value.dims:
        return (False,) * (value.dims[0] or 0 if value.dims else 1)
    if value.kind != "sizes" or value.marks is None:
        raise Undecided("a shape that is computed")
    return value.marks


def aligned(values: Sequence[Value]) -> Value:
    """What operations give that broadcast their operands, and compute each element by itself."""
    if len(values) == 1:
        return values[0]
    grown = [each for each in values if each.kind == "sizes"]
    carried = [each for each in values if each.kind == "rows"]
    if grown and carried:
        raise Mixed("computes with the number of rows")
    if any(each.kind == "list" for each in values):
        raise Undecided("a list where a tensor is expected")
    if grown:
        known = [each.marks for each in grown]
        lengths = {len(each) for each in known if each is not None}
        if None in known or len(lengths) != 1:
            return sizes(None)
        return sizes(any(column) for column in zip(*(each for each in known if each is not None), strict=True))
    if not carried:
        return constant()
    places = {rank(each) - each.axis for each in carried}
    if len(places) > 1:
        raise Undecided("broadcasts the rows of one operand over another axis")
    (place,) = places
    for each in values:
        if each.kind == "constant" and rank(each) >= place and each.dims is not None and each.dims[-place] != 1:
            raise Undecided("a constant with a size for the rows")
    highest = max(rank(each) for each in values)
    return rows(highest - place, (None,) * highest)


def joined(first: Value, second: Value) -> Value:
    """What is known of a tensor that is one or the other."""
    if first.kind == second.kind == "list":
        items = [each.item for each in (first, second) if each.item is not None]
        item = None if not items else items[0] if len(items) == 1 else joined(items[0], items[1])
        return Value(kind="list", item=item)
    for kind in ("mixed", "unknown"):
        for each in (first, second):
            if each.kind == kind:
                return each
    same = first.kind == second.kind and first.axis == second.axis and first.marks == second.marks
    if not same:
        return Value(kind="unknown", why="a loop or condition whose parts treat the rows differently")
    return first if first.dims == second.dims else replace(first, dims=_merged(first.dims, second.dims))


def _merged(first: Dims | None, second: Dims | None) -> Dims | None:
    if first is None or second is None or len(first) != len(second):
        return None
    return tuple(a if a == b else None for a, b in zip(first, second, strict=True))


def dims_of(tensor: tf.Tensor) -> Dims | None:
    """The dimensions of a TensorFlow tensor, as far as they are known."""
    return None if tensor.shape.rank is None else tuple(tensor.shape.as_list())


def static_input(op: tf.Operation, index: int) -> list[int]:
    """The value of an input that is a constant; a scalar as a list of one."""
    value = tf.get_static_value(op.inputs[index])
    if value is None:
        raise Undecided("a parameter that is computed")
    return [int(each) for each in value.ravel()]


def only_first(values: Sequence[Value], at: int = 0) -> Value:
    """The input that has the rows, where the others are constants."""
    if any(each.kind != "constant" for index, each in enumerate(values) if index != at):
        raise Undecided("another input depends on the batch")
    if values[at].kind != "rows":
        raise Undecided("an input that has no rows")
    return values[at]


#: Gives one value for all outputs of an operation, or one for each.
Rule = Callable[[tf.Operation, Sequence[Value]], Value | list[Value]]
