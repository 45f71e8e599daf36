"""Classify and regress over REST: JSON objects to ``tf.Example`` messages, and answers to JSON."""

from __future__ import annotations

import json
from dataclasses import dataclass

import numpy as np

from modelyard.errors import InvalidInputError, InvalidRequestError
from modelyard.serving.handlers.rest._floats import float_texts
from modelyard.serving.handlers.rest._json import parse_object, quote, signature_in, type_name
from modelyard.serving.handlers.rest._tensors import decode_b64, is_b64
from modelyard.serving.prediction import Classification, Regression
from modelyard.wire import tensorflow_pb2

_INT64_MIN, _INT64_MAX = -(1 << 63), (1 << 63) - 1
_UINT64_MAX = (1 << 64) - 1


@dataclass(frozen=True, kw_only=True)
class ExamplesBody:
    """A parsed request body."""

    #: The signature asked for; empty for the default.
    signature: str
    #: Serialized ``tf.Example`` messages, the context merged into each.
    examples: list[bytes]


def parse_examples(body: bytes, *, max_depth: int) -> ExamplesBody:
    document = parse_object(body, max_depth=max_depth)
    signature = signature_in(document)
    context = b"" if "context" not in document else _example(document["context"])
    if "examples" not in document:
        raise InvalidRequestError(
            f"JSON Value: {quote(document)} When method is classify, key 'examples' is expected and was not found"
        )
    examples = document["examples"]
    if not isinstance(examples, list):
        raise InvalidRequestError(f"JSON Value: {quote(document)} Expecting 'examples' value to be an list/array")
    if not examples:
        raise InvalidRequestError(f"JSON Value: {quote(document)} 'examples' value is an empty array")
    return ExamplesBody(signature=signature, examples=[context + _example(example) for example in examples])


def _example(value: object) -> bytes:
    if not isinstance(value, dict):
        raise InvalidRequestError(f"Example must be JSON object but got JSON {type_name(value)}")
    example = tensorflow_pb2.Example()
    for name, content in value.items():
        try:
            # An empty list still makes a feature, without a kind.
            feature = example.features.feature[name]
        except UnicodeEncodeError as exc:
            raise InvalidInputError(f"Feature: {quote(name)} has a name that is not UTF-8") from exc
        for item in content if isinstance(content, list) else [content]:
            _add(feature, name, item)
    return example.SerializeToString()


def _add(feature: tensorflow_pb2.Feature, name: str, value: object) -> None:
    if isinstance(value, str) or is_b64(value):
        _expect(feature, name, "bytes_list")
        data = value.encode("utf-8", "surrogateescape") if isinstance(value, str) else decode_b64(value)
        feature.bytes_list.value.append(data)
    elif isinstance(value, float):
        _expect(feature, name, "float_list")
        with np.errstate(over="ignore"):
            feature.float_list.value.append(float(np.float32(value)))
    elif isinstance(value, int):
        _expect(feature, name, "int64_list")
        if not _INT64_MIN <= value <= _INT64_MAX:
            kind = "uint64" if 0 < value <= _UINT64_MAX else "larger"
            raise InvalidInputError(f"Feature: {name} has {kind} element. Only int64_t is supported. Received {value}.")
        feature.int64_list.value.append(int(value))
    else:
        raise InvalidInputError(f"Feature: {name} has element with unexpected JSON type: {type_name(value)}")


def _expect(feature: tensorflow_pb2.Feature, name: str, kind: str) -> None:
    present = feature.WhichOneof("kind")
    if present is not None and present != kind:
        raise InvalidInputError(
            f"Unexpected element type in feature: {name} expecting type: {present.removesuffix('_list')}"
        )


def classify_answer(answer: Classification) -> str:
    """The body of a classify answer: for each example, a list of [label, score] pairs."""
    shape = next(array.shape for array in (answer.labels, answer.scores) if array is not None)
    if not shape[0]:
        raise InvalidInputError("Cannot convert empty ClassificationResults to JSON")
    count = shape[0] * shape[1]
    labels = [""] * count if answer.labels is None else [_text(label) for label in answer.labels.ravel().tolist()]
    scores = ["0.0"] * count if answer.scores is None else float_texts(np.asarray(answer.scores, np.float32))
    pairs = [f"[{json.dumps(label, ensure_ascii=False)}, {score}]" for label, score in zip(labels, scores, strict=True)]
    return _results([f"[{', '.join(pairs[row * shape[1] : (row + 1) * shape[1]])}]" for row in range(shape[0])])


def regress_answer(answer: Regression) -> str:
    """The body of a regress answer: a flat list of floats."""
    if not answer.values.size:
        raise InvalidInputError("Cannot convert empty RegressionResults to JSON")
    return _results(float_texts(np.asarray(answer.values, np.float32)))


def _results(items: list[str]) -> str:
    return f'{{\n    "results": [{", ".join(items)}\n    ]\n}}'


def _text(value: bytes) -> str:
    return value.decode("utf-8", "replace")
