"""What callers give as examples, turned into ``tf.Example`` messages."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError

from modelyard.clients.protocols import ExamplesCall
from modelyard.clients.values import read_bytes
from modelyard.errors import InvalidInputError
from modelyard.wire import tensorflow_pb2

_INT64_MIN, _INT64_MAX = -(1 << 63), (1 << 63) - 1


@dataclass(frozen=True, kw_only=True)
class Examples:
    """Examples as messages, at least one, and the features that all share."""

    examples: Sequence[tensorflow_pb2.Example]
    context: tensorflow_pb2.Example | None


def to_examples(call: ExamplesCall) -> Examples:
    """Turns a caller's examples into messages."""
    rows = _rows(call.examples)
    if not rows:
        raise InvalidInputError("Expected at least one example; received none.")
    context = None if call.context is None else _example(call.context, "the context")
    return Examples(examples=[_example(row, f"example {index}") for index, row in enumerate(rows)], context=context)


def _rows(examples: Any) -> list[object]:
    # A DataFrame is known by what it can do: pandas is no dependency, and iterating over one gives its column names.
    if hasattr(examples, "to_dict") and hasattr(examples, "columns"):
        columns = [(str(name), examples[name]) for name in examples.columns]
        missing = {name: column.isna().to_numpy() for name, column in columns}
        values = {name: column.tolist() for name, column in columns}
        floats = {name for name, column in columns if getattr(column.dtype, "kind", "") == "f"}
        return [
            {name: values[name][row] for name in values if name in floats or not missing[name][row]}
            for row in range(len(examples))
        ]
    if isinstance(examples, (str, bytes, Mapping)) or dataclasses.is_dataclass(examples):
        raise InvalidInputError("Expected a list of examples; received one example. Put it into a list.")
    if not isinstance(examples, Iterable):
        raise InvalidInputError(f"Expected a list of examples or a DataFrame; received {type(examples).__name__}.")
    return list(examples)


def _example(value: object, where: str) -> tensorflow_pb2.Example:
    if isinstance(value, bytes):
        try:
            return tensorflow_pb2.Example.FromString(value)
        except DecodeError as exc:
            raise InvalidInputError(f"{where}: received {len(value)} bytes that are no tf.Example: {exc}") from exc
    if isinstance(value, tensorflow_pb2.Example):
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {item.name: getattr(value, item.name) for item in dataclasses.fields(value)}
    if not isinstance(value, Mapping):
        raise InvalidInputError(
            f"{where}: expected a mapping from feature to value, a dataclass or a serialized tf.Example; "
            f"received {type(value).__name__}."
        )
    example = tensorflow_pb2.Example()
    for name, content in value.items():
        if content is None:
            continue
        try:
            _fill(example.features.feature[name], content)
        except InvalidInputError as exc:
            raise InvalidInputError(f"{where}, feature {name!r}: {exc.message}") from exc
        except UnicodeEncodeError as exc:
            raise InvalidInputError(
                f"{where}, feature {name!r}: expected text that UTF-8 can write; received {exc.object!r}. Send bytes "
                "instead."
            ) from exc
        except TypeError as exc:
            raise InvalidInputError(f"{where}: expected names of features as text; received {name!r}.") from exc
    return example


def _fill(feature: tensorflow_pb2.Feature, value: object) -> None:
    if isinstance(value, np.ndarray):
        if value.ndim > 1:
            raise InvalidInputError(f"a feature is a flat list; received shape {list(value.shape)}. Use .ravel().")
        value = value.tolist()
    items = [read_bytes(item) for item in value] if isinstance(value, (list, tuple)) else [read_bytes(value)]
    items = [item.item() if isinstance(item, np.generic) else item for item in items]
    if not items:
        return
    if all(isinstance(item, (str, bytes)) for item in items):
        feature.bytes_list.value.extend(item.encode() if isinstance(item, str) else item for item in items)
    elif all(isinstance(item, int) for item in items):
        if not all(_INT64_MIN <= item <= _INT64_MAX for item in items):
            raise InvalidInputError("whole numbers must fit into 64 bits.")
        feature.int64_list.value.extend(int(item) for item in items)
    elif all(isinstance(item, (int, float)) for item in items):
        with np.errstate(over="ignore"):
            feature.float_list.value.extend(np.array(items, dtype=np.float32).tolist())
    else:
        kinds = ", ".join(sorted({type(item).__name__ for item in items}))
        raise InvalidInputError(f"expected numbers, or text and bytes; received {kinds}.")
