"""Outputs that are the same for every example: which of them are a fault."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from modelyard.artifact import SignatureFunction, TensorSpec, VerificationData
from modelyard.errors import VerificationError
from modelyard.export import ExportOptions, compute_reference, trace
from modelyard.export.sources._checks import computed_outputs

X = TensorSpec(name="x", dtype="float32", shape=(-1, 2))
DATA = VerificationData(inputs={"f": {"x": np.random.default_rng(0).normal(size=(32, 2)).astype(np.float32)}})
OPTIONS = ExportOptions(min_examples=32)


def reference_of(constant: Callable[[Any], Any], options: ExportOptions = OPTIONS) -> Any:
    function = SignatureFunction(inputs=(X,), function=lambda x: {"y": x * 2, "z": constant(x)})
    return compute_reference(trace(tf.Module(), {"f": function}), DATA, options=options)


def count(x: Any) -> Any:
    return tf.shape(x)[0]


@pytest.mark.parametrize(
    "constant",
    [
        # Constants by design: they depend on how many rows there are, and on nothing in them.
        lambda x: tf.tile([[0.25, 0.75]], [count(x), 1]),
        lambda x: tf.fill([count(x)], 3.0),
        lambda x: tf.zeros_like(x),
        lambda x: tf.tile([["cat", "dog"]], [count(x), 1]),
        # Integers and strings may always be the same.
        lambda x: tf.cast(x[:, 0] * 0, tf.int64),
        lambda x: tf.gather(["cat", "dog"], tf.cast(x[:, 0] * 0, tf.int64)),
    ],
)
def test_constants_by_design_are_no_fault(constant: Callable[[Any], Any]) -> None:
    assert set(reference_of(constant).outputs["f"][1]) == {"y", "z"}


@pytest.mark.parametrize(
    "constant",
    [
        lambda x: x * 0.0,
        lambda x: tf.nn.relu(x - 100.0),
        lambda x: tf.map_fn(lambda row: row * 0.0, x),
        lambda x: tf.nn.softmax(x[:, :1]),
    ],
)
def test_a_float_that_is_computed_and_never_changes_is_refused(constant: Callable[[Any], Any]) -> None:
    with pytest.raises(VerificationError, match=r"Output 'z' of signature 'f'.*--allow-constant z"):
        reference_of(constant)
    assert set(reference_of(constant, replace(OPTIONS, constant_outputs=("z",))).outputs["f"][1]) == {"y", "z"}


def test_which_outputs_are_computed() -> None:
    @tf.function(input_signature=[tf.TensorSpec([None, 2], tf.float32, name="x")])
    def function(x: Any) -> dict[str, Any]:
        return {"a": x + 1.0, "b": tf.ones(tf.shape(x)), "c": tf.reduce_sum(x, -1) * 0.0, "d": tf.constant([1.0])}

    assert computed_outputs(function) == {"a", "c"}
