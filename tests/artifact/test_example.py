"""Examples parsed without TensorFlow: the same values, and the same refusals, as tf.io.parse_example."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from modelyard.artifact import ExampleDecode, FeatureSpec, decode_examples
from modelyard.errors import InvalidInputError

DECODE = ExampleDecode(
    input="inputs",
    features=(
        FeatureSpec(name="x", dtype="float32", shape=(2,)),
        FeatureSpec(name="scale", dtype="float32", default=(1.5,)),
        FeatureSpec(name="ids", dtype="int64", shape=(2, 2), default=(1, 2, 3, 4), input="identities"),
        FeatureSpec(name="word", dtype="string", shape=(1,), default=("naïve",)),
    ),
)
KINDS: dict[str, Any] = {"float": "float_list", "int64": "int64_list", "bytes": "bytes_list"}


def example(**features: tuple[str, list[Any]] | None) -> bytes:
    message = tf.train.Example()
    for name, content in features.items():
        feature = message.features.feature[name]
        if content is not None:
            kind, values = content
            getattr(feature, KINDS[kind]).SetInParent()
            getattr(feature, KINDS[kind]).value.extend(values)
    return message.SerializeToString()


def by_tensorflow(messages: list[bytes]) -> dict[str, Any]:
    features = {
        spec.name: tf.io.FixedLenFeature(
            spec.shape, spec.dtype, None if spec.default is None else np.reshape(np.array(spec.default), spec.shape)
        )
        for spec in DECODE.features
    }
    parsed = tf.io.parse_example(tf.constant(messages, tf.string, [len(messages)]), features)
    return {spec.tensor.name: parsed[spec.name].numpy() for spec in DECODE.features}


X = ("float", [1.0, 2.0])
RIGHT = {
    "all": example(
        x=X, scale=("float", [0.1]), ids=("int64", [-(2**63), 2**63 - 1, 0, 7]), word=("bytes", [b"a\x00\xff\x00"])
    ),
    "defaults": example(x=("float", [float("inf"), 1e-45])),
    "without a kind": example(x=X, scale=None),
    "others": example(x=X, unknown=("bytes", [b"?"])),
}
WRONG = {
    "missing": (example(scale=("float", [1.0])), "x"),
    "without a kind": (example(x=None), "x"),
    "kind": (example(x=("int64", [1, 2])), "x"),
    "kind with default": (example(x=X, word=("float", [1.0])), "word"),
    "too few": (example(x=("float", [1.0])), "x"),
    "too many": (example(x=("float", [1.0, 2.0, 3.0])), "x"),
    "empty with default": (example(x=X, scale=("float", [])), "scale"),
    "no example": (b"not an example", "parse example"),
}


def test_right_examples_as_tensorflow_reads_them() -> None:
    messages = list(RIGHT.values())
    expected, received = by_tensorflow(messages), decode_examples(messages, DECODE)
    assert received.keys() == expected.keys() == {"x", "scale", "identities", "word"}
    for name, values in received.items():
        assert values.dtype == expected[name].dtype and values.shape == expected[name].shape
        np.testing.assert_array_equal(values, expected[name])


@pytest.mark.parametrize("name", RIGHT)
def test_one_by_one(name: str) -> None:
    for key, values in decode_examples([RIGHT[name]], DECODE).items():
        np.testing.assert_array_equal(values, by_tensorflow([RIGHT[name]])[key])


@pytest.mark.parametrize("name", WRONG)
def test_wrong_examples_are_refused_where_tensorflow_refuses_them(name: str) -> None:
    message, fragment = WRONG[name]
    with pytest.raises(tf.errors.InvalidArgumentError, match=fragment):
        by_tensorflow([RIGHT["all"], message])
    with pytest.raises(InvalidInputError, match=rf"(?s)Input 'inputs', element 1: .*{fragment}"):
        decode_examples([RIGHT["all"], message], DECODE)


def test_an_empty_batch() -> None:
    shapes = {name: values.shape for name, values in decode_examples([], DECODE).items()}
    assert shapes == {"x": (0, 2), "scale": (0,), "identities": (0, 2, 2), "word": (0, 1)}


def test_random_examples() -> None:
    rng = np.random.default_rng(0)
    messages = []
    for _ in range(500):
        features: dict[str, Any] = {"x": ("float", rng.normal(size=2).tolist())}
        if rng.random() < 0.5:
            features["scale"] = ("float", rng.normal(size=1).tolist())
        if rng.random() < 0.5:
            features["ids"] = ("int64", rng.integers(-(2**62), 2**62, 4).tolist())
        if rng.random() < 0.5:
            features["word"] = ("bytes", [rng.bytes(int(rng.integers(0, 9)))])
        messages.append(example(**features))
    expected = by_tensorflow(messages)
    for name, values in decode_examples(messages, DECODE).items():
        np.testing.assert_array_equal(values, expected[name])
