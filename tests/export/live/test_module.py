"""Modules whose functions have an input_signature."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from modelyard.errors import ConfigurationError, ConversionError
from modelyard.export import ExportOptions, export
from modelyard.export.live import module_signatures
from modelyard.export.live._specs import distinct, named_outputs

OPTIONS = ExportOptions(formats=("saved_model",), min_examples=16, latency_calls=10, runtimes=(), measure_seconds=0.5)
ROWS = tf.TensorSpec([None, 3], tf.float32)


class Affine(tf.Module):
    """A call, another function, one that takes no batch, and one without a signature."""

    def __init__(self) -> None:
        super().__init__()
        self.kernel = tf.Variable(np.random.default_rng(0).normal(size=(3, 2)).astype(np.float32))

    @tf.function(input_signature=[ROWS])
    def __call__(self, x: Any) -> Any:
        return x @ self.kernel

    @tf.function(input_signature=[tf.TensorSpec([None, 3], tf.float32, name="a"), {"k": ROWS}])
    def pair(self, x: Any, more: Any) -> Any:
        return x @ self.kernel, more["k"]

    @tf.function(input_signature=[tf.TensorSpec([3], tf.float32)])
    def one(self, x: Any) -> Any:
        return x

    @tf.function
    def anything(self, x: Any) -> Any:
        return x


def test_functions_are_signatures(tmp_path: Path) -> None:
    module = Affine()
    report = export(module, tmp_path / "m", data="random", options=OPTIONS, signatures=["__call__", "pair"])
    signatures = report.manifest.signatures
    assert {name: [spec.name for spec in each.inputs] for name, each in signatures.items()} == {
        "serving_default": ["x"], "pair": ["a", "more_k"],
    }  # fmt: skip
    assert [spec.name for spec in signatures["pair"].outputs] == ["output_0", "output_1"]
    loaded = tf.saved_model.load(str(report.version.path)).signatures["serving_default"]
    rows = np.ones((2, 3), np.float32)
    np.testing.assert_allclose(loaded(x=tf.constant(rows))["output_0"], rows @ module.kernel.numpy(), atol=1e-6)


def test_a_choice_of_functions(tmp_path: Path) -> None:
    assert set(module_signatures(Affine())) == {"serving_default", "one", "pair"}
    assert set(module_signatures(Affine(), ["pair"])) == {"serving_default"}
    assert set(module_signatures(Affine(), ["serving_default", "pair"])) == {"serving_default", "pair"}
    with pytest.raises(ConfigurationError, match="has no function 'anything' with an input_signature; it has __call__"):
        export(Affine(), tmp_path / "m", data="random", options=OPTIONS, signatures=["anything"])


def test_a_function_that_is_an_attribute() -> None:
    module = tf.Module()
    module.serve = tf.function(lambda x: {"y": x + 1.0}, input_signature=[ROWS])
    assert set(module_signatures(module)) == {"serving_default"}
    module.bad = tf.function(lambda x: x @ x, input_signature=[tf.TensorSpec([3], tf.float32)])
    with pytest.raises(ConversionError, match="The function 'bad' cannot be traced"):
        module_signatures(module)
    ragged = tf.Module()
    ragged.serve = tf.function(lambda x: x, input_signature=[tf.RaggedTensorSpec([None, None], tf.float32)])
    with pytest.raises(ConversionError, match="The function 'serve' takes RaggedTensorSpec.*no request can send"):
        module_signatures(ragged)


def test_names_stay_apart() -> None:
    assert distinct(["a", "a", "a_1", "a", "b"]) == ["a", "a_2", "a_1", "a_3", "b"]
    assert named_outputs({"a": [1, 2], "a_0": 3}) == {"a_0": 1, "a_1": 2, "a_0_1": 3}
    assert named_outputs([1, (2, {"k": 3})], ["x"]) == {"output_0": 1, "output_1_0": 2, "output_1_1_k": 3}
    assert named_outputs((1, 2), ["x", "x"]) == {"x": 1, "x_1": 2}
    assert named_outputs((1, {"z": 3, "b": 2}), ["a", "b", "z"]) == {"a": 1, "b": 2, "z": 3}
