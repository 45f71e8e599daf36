"""Free axes are verified at two lengths at least: whoever is right at one only is refused."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from modelyard.artifact import Signature, SignatureFunction, TensorSpec, VerificationData
from modelyard.errors import ConfigurationError, VerificationError
from modelyard.export import ExportOptions, compute_reference, export, load_data, trace, verify
from modelyard.export.formats import export_saved_model
from modelyard.export.sources import by_shape
from modelyard.export.sources._lengths import other_length

OPTIONS = ExportOptions(min_examples=16, latency_calls=10, measure_seconds=0.5, runtimes=())
WORDS = TensorSpec(name="ids", dtype="int32", shape=(-1, -1))
MASK = TensorSpec(name="mask", dtype="float32", shape=(-1, -1))
IMAGE = TensorSpec(name="image", dtype="float32", shape=(-1, -1, -1, 3))


def signature(*inputs: TensorSpec) -> Signature:
    return Signature(inputs=inputs, outputs=(), compute="f")


def test_inputs_of_one_length_stay_so() -> None:
    inputs: dict[str, Any] = {"ids": np.arange(120).reshape(12, 10), "mask": np.ones((12, 10), np.float32)}
    found = other_length(signature(WORDS, MASK), inputs, lambda _: True)
    assert found is not None
    assert {values.shape for values in found.values()} == {(12, 7)}
    np.testing.assert_array_equal(found["ids"], inputs["ids"][:, :7])


@pytest.mark.parametrize(("multiple", "expected"), [(1, (44, 33)), (16, (32, 32)), (64, None)])
def test_height_and_width_of_networks_that_halve(multiple: int, expected: tuple[int, int] | None) -> None:
    inputs = {"image": np.zeros((4, 64, 48, 3), np.float32)}
    found = other_length(
        signature(IMAGE), inputs, lambda each: all(size % multiple == 0 for size in each["image"].shape[1:3])
    )
    assert (None if found is None else found["image"].shape[1:3]) == expected


def test_one_step_becomes_several() -> None:
    found = other_length(signature(WORDS), {"ids": np.zeros((4, 1), np.int32)}, lambda _: True)
    assert found is not None and found["ids"].shape == (4, 2)
    assert (
        other_length(signature(TensorSpec(name="x", dtype="float32", shape=(-1, 4))), {"x": np.zeros((2, 4))}, bool)
        is None
    )


def test_random_sizes_are_those_that_the_model_takes() -> None:
    def score(_: str, inputs: Any) -> int:
        height, width = inputs["image"].shape[1:3]
        return int(height >= 30 and height != width)

    image = load_data("random", {"f": signature(IMAGE)}, limit=3, score=score).inputs["f"]["image"]
    assert image.shape == (3, 32, 48, 3)
    square = load_data("random", {"f": signature(IMAGE)}, limit=3, score=lambda _, each: int(
        each["image"].shape[1] == each["image"].shape[2])).inputs["f"]["image"]  # fmt: skip
    assert square.shape == (3, 12, 12, 3)


def sums(x: Any) -> dict[str, Any]:
    return {"pairs": tf.matmul(x, x, transpose_b=True), "total": tf.reduce_sum(x, [1, 2])}


def test_a_format_that_is_right_at_one_length_only_is_refused(tmp_path: Path) -> None:
    spec = TensorSpec(name="x", dtype="float32", shape=(-1, -1, 2))
    traced = trace(tf.Module(), {"f": SignatureFunction(inputs=(spec,), function=sums)})
    data = VerificationData(inputs={"f": {"x": np.random.default_rng(0).normal(size=(16, 10, 2)).astype(np.float32)}})
    reference = compute_reference(traced, data, options=OPTIONS)
    (other,) = reference.others
    assert other.data.inputs["f"]["x"].shape == (16, 7, 2) and set(other.outputs["f"]) == {1, 16}

    def at_ten(x: Any) -> dict[str, Any]:
        # As a converter does that takes the length of its example for a constant.
        return {
            key: value * (1.0 if key == "pairs" else 10.0 / tf.cast(tf.shape(x)[1], tf.float32))
            for key, value in sums(x).items()
        }

    for name, function in (("right", sums), ("wrong", at_ten)):
        (tmp_path / name).mkdir()
        export_saved_model(
            trace(tf.Module(), {"f": SignatureFunction(inputs=(spec,), function=function)}), tmp_path / name
        )
    assert verify(reference, tmp_path / "right", format="saved_model", options=OPTIONS).report.examples == 32
    with pytest.raises(VerificationError, match=r"output 'total' has an .* examples of another length: x \[7, 2\]\."):
        verify(reference, tmp_path / "wrong", format="saved_model", options=OPTIONS)


def test_a_convolution_over_any_image(tmp_path: Path) -> None:
    keras.utils.set_random_seed(0)
    image = keras.Input((None, None, 3), name="image")
    x = keras.layers.Conv2D(4, 3, strides=2, padding="same")(image)
    model = keras.Model(image, keras.layers.Conv2DTranspose(1, 3, strides=2, padding="same", name="mask")(x))
    report = export(model, tmp_path / "m", data="random", options=OPTIONS, examples=16)
    assert set(report.checks) == {"saved_model", "onnx", "tflite"}
    assert all(check.report.examples == 32 for check in report.checks.values())


def test_it_is_said_where_no_other_length_is_taken(caplog: pytest.LogCaptureFixture) -> None:
    def fixed(x: Any) -> dict[str, Any]:
        return {"y": tf.reshape(x, [-1, 10]) * 2.0}

    spec = TensorSpec(name="x", dtype="float32", shape=(-1, -1))
    traced = trace(tf.Module(), {"f": SignatureFunction(inputs=(spec,), function=fixed)})
    data = VerificationData(inputs={"f": {"x": np.random.default_rng(0).normal(size=(17, 10)).astype(np.float32)}})
    with caplog.at_level(logging.WARNING, "modelyard.export"):
        reference = compute_reference(traced, data, options=OPTIONS)
    assert not reference.others
    assert "Signature f leaves axes of x free" in caplog.text


def test_examples_of_the_users_own_lengths(tmp_path: Path) -> None:
    """Sentences of three lengths: batches where they can share one, and alone."""
    keras.utils.set_random_seed(0)
    ids = keras.Input((None,), dtype="int32", name="ids")
    words = keras.layers.Embedding(20, 4)(ids)
    model = keras.Model(ids, keras.layers.Dense(2, name="y")(keras.layers.GlobalAveragePooling1D()(words)))
    rng = np.random.default_rng(0)
    lists = [rng.integers(0, 20, length).tolist() for length in (5, 9, 9, 7, 9, 5, 9, 9)]
    options = ExportOptions(min_examples=8, latency_calls=10, measure_seconds=0.5, runtimes=())
    report = export(model, tmp_path / "m", data={"ids": lists}, options=options, formats=("saved_model", "onnx"))
    assert {check.report.examples for check in report.checks.values()} == {8}
    with pytest.raises(ConfigurationError, match=r"\{'ids': 2, 'mask': 1\} examples; expected as many for each"):
        by_shape({"ids": [[1], [1, 2]], "mask": [[1.0]]})
