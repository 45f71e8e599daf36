"""Zeros padded before a max-pooling stay zeros in onnxruntime, which folds the two into one that knows no zeros."""

from __future__ import annotations

from pathlib import Path

import keras
import numpy as np
import onnx
import onnxruntime
import tensorflow as tf

from modelyard.artifact import SignatureFunction, TensorSpec
from modelyard.export import trace
from modelyard.export.formats import export_onnx
from modelyard.export.formats._onnx_pads import guard_pads


def test_a_window_of_negative_numbers_at_the_border(tmp_path: Path) -> None:
    model = keras.Sequential([keras.Input((5, 7, 2)), keras.layers.ZeroPadding2D(1), keras.layers.MaxPooling2D(3, 2)])
    spec = TensorSpec(name="x", dtype="float32", shape=(-1, 5, 7, 2))
    function = SignatureFunction(inputs=(spec,), function=lambda x: {"y": model(x)})
    export_onnx(trace(tf.Module(), {"f": function}), tmp_path, opset=18)
    x = -1 - np.random.default_rng(0).random((3, 5, 7, 2), np.float32)
    session = onnxruntime.InferenceSession(tmp_path / "onnx" / "f.onnx", providers=["CPUExecutionProvider"])
    np.testing.assert_array_equal(session.run(None, {"x": x})[0], model(x).numpy())
    assert session.run(None, {"x": x})[0].max() == 0.0


def test_a_pad_that_names_its_axes_and_one_that_others_use() -> None:
    """Other exporters pad by axis; a pad stays where something else reads it."""
    model = onnx.parser.parse_model("""
        <ir_version: 10, opset_import: ["" : 18]>
        g (float[1, 1, 4, 5] x) => (float[1, 1, h, w] y, float[1, 1, a, b] padded)
        <int64[4] pads = {1, 2, 1, 2}, float zero = {0.0}, int64[2] axes = {3, 2}> {
            padded = Pad (x, pads, zero, axes)
            y = MaxPool <kernel_shape = [3, 3], strides = [2, 2]> (padded)
        }
    """)
    expected = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    assert guard_pads(model) == 1
    onnx.checker.check_model(model, full_check=True)
    guarded = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    # Of numbers above zero both are right.
    x = np.random.default_rng(0).random((1, 1, 4, 5), np.float32)
    for before, after in zip(expected.run(None, {"x": x}), guarded.run(None, {"x": x}), strict=True):
        np.testing.assert_array_equal(before, after)
    assert guarded.run(["y"], {"x": -1 - x})[0].max() == 0.0
