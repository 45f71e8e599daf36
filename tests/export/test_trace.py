from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from modelyard.artifact import CLASSIFY_METHOD, EncodedImageFunction, Signature, SignatureFunction, TensorSpec
from modelyard.errors import ConversionError
from modelyard.export import TracedModel, trace
from modelyard.export.sources import graph_signature

X = TensorSpec(name="x", dtype="float32", shape=(-1, 2))
DOUBLE = SignatureFunction(inputs=(X,), function=lambda x: {"y": x * 2})


def test_what_is_described(traced: TracedModel) -> None:
    assert set(traced.signatures) == {"serving_default", "image_bytes", "embed"}
    assert set(traced.graphs) == {"serving_default", "embed", "image_bytes.preprocess"}
    assert graph_signature(traced, "image_bytes.preprocess") == Signature(
        inputs=(TensorSpec(name="pixels", dtype="uint8", shape=(-1, -1, 3)),),
        outputs=(TensorSpec(name="image", dtype="float32", shape=(8, 8, 1)),),
        compute="image_bytes.preprocess",
    )
    assert graph_signature(traced, "embed").outputs == (TensorSpec(name="embedding", dtype="float32", shape=(-1, 4)),)


def test_functions_are_called_with_names() -> None:
    function = SignatureFunction(
        inputs=(X, TensorSpec(name="shift", dtype="int32", shape=(-1,))),
        function=lambda *, shift, x: {"y": x + tf.cast(shift, tf.float32)[:, tf.newaxis]},
    )
    traced = trace(tf.Module(), {"f": function})
    answer = traced.serving["f"](tf.constant([[1.0, 2.0]]), tf.constant([3]))
    np.testing.assert_array_equal(answer["y"].numpy(), [[4.0, 5.0]])


def test_outputs_are_traced_not_declared() -> None:
    def function(x: Any) -> dict[str, Any]:
        return {"b": tf.strings.as_string(x[:, 0]), "a": tf.cast(x, tf.int64)}

    traced = trace(tf.Module(), {"f": replace(DOUBLE, function=function)})
    assert traced.signatures["f"].outputs == (
        TensorSpec(name="a", dtype="int64", shape=(-1, 2)),
        TensorSpec(name="b", dtype="string", shape=(-1,)),
    )


def fail(x: Any) -> dict[str, Any]:
    raise RuntimeError("no such layer")


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        (replace(DOUBLE, function=fail), "(?s)'f' cannot be traced: .*no such layer"),
        (replace(DOUBLE, function=lambda x: x), "returned .*Tensor; expected a mapping from output name to tensor"),
        (replace(DOUBLE, function=lambda x: {}), "returned dict; expected a mapping"),
        (replace(DOUBLE, inputs=()), "'f' takes no input: what it answers is a constant"),
        (replace(DOUBLE, method=CLASSIFY_METHOD), "expected one string input 'inputs' of serialized tf.Example"),
        (EncodedImageFunction(compute="g", preprocess=lambda pixels: pixels), "ends in 'g', which is no computing"),
        (EncodedImageFunction(compute="f", preprocess=lambda pixels: pixels), "ends in 'f', which is no computing"),
    ],
)
def test_what_does_not_fit_is_named(declared: SignatureFunction | EncodedImageFunction, message: str) -> None:
    with pytest.raises(ConversionError, match=message):
        trace(tf.Module(), {"f": declared})


def test_no_signature() -> None:
    with pytest.raises(ConversionError, match="no signature to export"):
        trace(tf.Module(), {})


@pytest.mark.parametrize(
    ("preprocess", "message"),
    [
        (lambda pixels: pixels[0, 0, :2], "returns uint8; input 'x' of 'f' is float32"),
        (lambda pixels: tf.zeros([3]), "(?s)'g.preprocess' cannot be traced"),
    ],
)
def test_a_preprocess_that_does_not_fit(preprocess: Any, message: str) -> None:
    encoded = EncodedImageFunction(compute="f", preprocess=preprocess)
    with pytest.raises(ConversionError, match=message):
        trace(tf.Module(), {"f": DOUBLE, "g": encoded})


def test_a_preprocess_into_two_inputs() -> None:
    two = SignatureFunction(inputs=(X, replace(X, name="z")), function=lambda x, z: {"y": x + z})
    encoded = EncodedImageFunction(compute="f", preprocess=lambda pixels: tf.zeros([2]))
    with pytest.raises(ConversionError, match="has 2 inputs; expected one"):
        trace(tf.Module(), {"f": two, "g": encoded})
