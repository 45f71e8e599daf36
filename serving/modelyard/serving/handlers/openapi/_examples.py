"""A valid request for each signature, as JSON, from its names, dtypes and shapes alone."""

from __future__ import annotations

import base64
import math
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from modelyard.artifact import (
    CLASSIFY_METHOD,
    DEFAULT_SIGNATURE,
    REGRESS_METHOD,
    ExampleDecode,
    FeatureSpec,
    ImageDecode,
    Signature,
    TensorSpec,
)
from modelyard.wire import tensorflow_pb2

#: Larger tensors are no example that a person would read.
EXAMPLE_VALUES = 20_000
#: A grey image of one pixel.
_PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGNgAAAAAgABSK+kcQAAAABJRU5ErkJggg=="
_VERBS = {CLASSIFY_METHOD: "classify", REGRESS_METHOD: "regress"}


def request_url(model: str, signature: Signature) -> str:
    """The path of version 1 of the API that calls a signature by its own method."""
    return f"/v1/models/{quote(model, safe='')}:{_VERBS.get(signature.method, 'predict')}"


def example_body(name: str, signature: Signature) -> dict[str, object] | None:
    """A body for :func:`request_url` with one example in it.

    None where a tensor has more than :data:`EXAMPLE_VALUES` values, or a dtype that JSON lacks, or where a foreign
    model does not say which features its examples have.
    """
    named = {} if name == DEFAULT_SIGNATURE else {"signature_name": name}
    if signature.method in _VERBS:
        if not isinstance(signature.decode, ExampleDecode):
            return None
        return {**named, "examples": [{each.name: _feature_value(each) for each in signature.decode.features}]}
    values: dict[str, Any] = {}
    for spec in signature.inputs:
        value = _input(spec, signature)
        if value is None:
            return None
        values[spec.name] = value
    rows = signature.batched and all(spec.shape is not None for spec in signature.inputs)
    if not rows:
        return {**named, "inputs": values if len(values) > 1 else next(iter(values.values()), {})}
    row = {name: value[0] for name, value in values.items()}
    return {**named, "instances": [row if len(row) > 1 else next(iter(row.values()))]}


def _input(spec: TensorSpec, signature: Signature) -> object:
    shape = [1 if size < 0 else size for size in spec.shape] if spec.shape is not None else [1]
    value: object = _scalar(spec.dtype)
    if isinstance(signature.decode, ImageDecode):
        value = {"b64": _PNG}
    elif isinstance(signature.decode, ExampleDecode):
        value = {"b64": base64.b64encode(_message(signature.decode)).decode("ascii")}
    if value is None or math.prod(shape) > EXAMPLE_VALUES:
        return None
    return _filled(value, shape)


def _scalar(dtype: str) -> object:
    if dtype == "string":
        return "text"
    if dtype == "bool":
        return False
    if dtype in ("float32", "float64"):
        return 0.0
    return 0 if dtype.startswith(("int", "uint")) and dtype != "uint16" else None


def _filled(value: object, shape: Sequence[int]) -> object:
    for size in reversed(shape):
        value = [value] * size
    return value


def _feature_value(feature: FeatureSpec) -> object:
    value = _scalar(feature.dtype)
    count = math.prod(feature.shape)
    return value if feature.shape == () else [value] * count


def _message(decode: ExampleDecode) -> bytes:
    """A serialized ``tf.Example`` that has every feature."""
    example = tensorflow_pb2.Example()
    for spec in decode.features:
        feature, count = example.features.feature[spec.name], math.prod(spec.shape)
        if spec.dtype == "float32":
            feature.float_list.value.extend([0.0] * count)
        elif spec.dtype == "int64":
            feature.int64_list.value.extend([0] * count)
        else:
            feature.bytes_list.value.extend([b"text"] * count)
    return example.SerializeToString()
