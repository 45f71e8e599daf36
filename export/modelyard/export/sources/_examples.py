"""Signatures over serialized ``tf.Example`` messages: their parse in a graph, and what their methods demand."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from modelyard.artifact import CLASSIFY_METHOD, PREDICT_METHOD, ExampleDecode, Signature, TensorSpec
from modelyard.errors import ConversionError

_INPUT = "inputs"
_CLASSIFY = {"classes": "string", "scores": "float32"}
_REGRESS = "outputs"


def parse_in_graph(data: Any, decode: ExampleDecode) -> dict[str, Any]:
    """Parses serialized Examples, inside a graph.

    Args:
        data: String tensor ``[N]``.
        decode: The features to take.

    Returns:
        By graph input name, tensors ``[N, *shape]``.
    """
    features = {
        spec.name: tf.io.FixedLenFeature(
            spec.shape,
            tf.as_dtype(spec.dtype),
            None
            if spec.default is None
            else tf.reshape(tf.constant(spec.default, tf.as_dtype(spec.dtype)), spec.shape),
        )
        for spec in decode.features
    }
    parsed = tf.io.parse_example(data, features)
    return {spec.tensor.name: parsed[spec.name] for spec in decode.features}


def check_method(name: str, signature: Signature) -> None:
    """Checks that a classify or regress signature is one that TensorFlow Serving answers with.

    The rules are those of its classifier.cc and regressor.cc.

    Args:
        name: Of the signature.
        signature: Its description.

    Raises:
        ConversionError: Its input or its outputs are not what the method demands.
    """
    if signature.method == PREDICT_METHOD:
        return
    inputs = [(spec.name, spec.dtype) for spec in signature.inputs]
    if inputs != [(_INPUT, "string")]:
        raise ConversionError(
            f"Signature {name!r} has the method {signature.method} and the inputs {inputs}; expected one string input "
            f"{_INPUT!r} of serialized tf.Example messages. Declare it with ExampleFunction."
        )
    outputs = {spec.name: spec for spec in signature.outputs}
    if signature.method == CLASSIFY_METHOD:
        right = outputs.keys() <= _CLASSIFY.keys() and all(
            spec.dtype == _CLASSIFY[key] and spec.shape is not None and len(spec.shape) == 2
            for key, spec in outputs.items()
        )
        expected = "'classes' (string [N, K]), 'scores' (float32 [N, K]) or both"
    else:
        right = outputs.keys() == {_REGRESS} and _is_regression(outputs[_REGRESS])
        expected = f"{_REGRESS!r} (float32 [N] or [N, 1])"
    if not right:
        received = ", ".join(f"{spec.name!r} ({spec.dtype} {spec.shape})" for spec in signature.outputs)
        raise ConversionError(
            f"Signature {name!r} has the method {signature.method} and the outputs {received}; expected {expected}."
        )


def _is_regression(spec: TensorSpec) -> bool:
    shape = spec.shape or ()
    return spec.dtype == "float32" and (len(shape) == 1 or (len(shape) == 2 and shape[1] == 1))
