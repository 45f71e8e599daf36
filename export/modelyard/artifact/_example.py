"""Parse of serialized ``tf.Example`` messages without TensorFlow, equal to ``tf.io.parse_example``.

This is the decode step of a signature over Examples on servers that have no TensorFlow. The rules are those of
TensorFlow's fast_parsing.cc: a feature that is absent, or there without a kind, takes its default; a feature of another
kind or with another number of values is an error, default or not.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from google.protobuf.message import DecodeError

from modelyard.artifact._signature import ExampleDecode, FeatureSpec
from modelyard.errors import InvalidInputError
from modelyard.wire import tensorflow_pb2

_KINDS = {"float32": "float_list", "int64": "int64_list", "string": "bytes_list"}
_STORAGE: dict[str, Any] = {"float32": np.float32, "int64": np.int64, "string": object}


def decode_examples(messages: Sequence[bytes], decode: ExampleDecode) -> dict[str, npt.NDArray[Any]]:
    """Parses a batch of messages to one array per feature.

    Args:
        messages: Serialized ``tf.Example`` messages.
        decode: The features to take from them.

    Returns:
        By graph input name, ``[N, *shape]``: float32, int64, or an object array
        of bytes.

    Raises:
        InvalidInputError: A message is no Example; or lacks a required feature,
            or has one of another kind or size. The error names it.
    """
    count = len(messages)
    arrays = {spec.name: np.empty((count, math.prod(spec.shape)), _STORAGE[spec.dtype]) for spec in decode.features}
    defaults = {spec.name: _default(spec) for spec in decode.features}
    for row, data in enumerate(messages):
        place = f"Input {decode.input!r}, element {row}"
        try:
            features = tensorflow_pb2.Example.FromString(data).features.feature
        except (DecodeError, TypeError) as exc:
            raise InvalidInputError(
                f"{place}: Could not parse example input: {len(data)} bytes are no serialized tf.Example."
            ) from exc
        for spec in decode.features:
            # Looking a key up in a protobuf map would add it.
            feature = features[spec.name] if spec.name in features else None
            arrays[spec.name][row] = _values(feature, spec, defaults[spec.name], place)
    return {spec.tensor.name: arrays[spec.name].reshape(count, *spec.shape) for spec in decode.features}


def _values(
    feature: tensorflow_pb2.Feature | None, spec: FeatureSpec, default: npt.NDArray[Any] | None, place: str
) -> Any:
    kind = None if feature is None else feature.WhichOneof("kind")
    if feature is None or kind is None:
        if default is None:
            raise InvalidInputError(
                f"{place}: Feature: {spec.name} (data type: {_label(spec.dtype)}) is required but could not be found."
            )
        return default
    wanted = _KINDS[spec.dtype]
    if kind != wanted:
        raise InvalidInputError(
            f"{place}: Key: {spec.name}. Data types don't match. Expected {wanted}; received {kind}."
        )
    values = getattr(feature, wanted).value
    size = math.prod(spec.shape)
    if len(values) != size:
        raise InvalidInputError(
            f"{place}: Key: {spec.name}. Number of {_label(spec.dtype)} values != expected. Received {len(values)}; "
            f"expected {size} for shape {list(spec.shape)}."
        )
    return values


def _default(spec: FeatureSpec) -> npt.NDArray[Any] | None:
    if spec.default is None:
        return None
    values = [value.encode() if isinstance(value, str) else value for value in spec.default]
    return np.array(values, _STORAGE[spec.dtype])


def _label(dtype: str) -> str:
    return {"float32": "float"}.get(dtype, dtype)
