"""SavedModels with operators that OpenVINO's reader writes otherwise, or lacks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from modelyard.errors import LoadError
from modelyard.serving.backends import OpenVinoBackend


def _read(path: Path) -> OpenVinoBackend:
    return OpenVinoBackend(path, tags=("serve",), threads=1, requests=2)


def _written_otherwise(x: Any, kernel: Any) -> dict[str, Any]:
    """What OpenVINO 2026.4 makes something else of, beside a convolution, whose transpositions it moves."""
    import keras
    import tensorflow as tf

    image = tf.nn.conv2d(x, kernel, 1, "SAME")
    return {
        # Keras tells zeros apart by the bits of their signs.
        "largest": keras.ops.argmax(x, -1),
        "least": keras.ops.argmin(tf.round(x / 40), 1, keepdims=True),
        "bits": tf.bitwise.bitwise_and(tf.cast(x, tf.int32), 7),
        **{f"log_softmax_{axis}": tf.nn.log_softmax(x, axis) for axis in (1, 2, 3)},
        "tiled": tf.tile(image, [1, 2, 1, 3]),
        "tiled_before": tf.nn.conv2d(tf.tile(x, [1, 1, 2, 1]), kernel, 1, "SAME"),
        "normalized": tf.nn.local_response_normalization(image, 1, bias=1.5, alpha=0.3, beta=0.7),
        "colours": tf.image.hsv_to_rgb(tf.stack([x[..., 0] * 0 + 1, *[tf.sigmoid(x[..., 1])] * 2], -1)),
        "more_colours": tf.image.hsv_to_rgb(tf.stack([tf.sigmoid(x[..., 0]), *[tf.sigmoid(x[..., 1])] * 2], -1)),
        "normalized_wide": tf.nn.local_response_normalization(image),
    }


def test_what_its_reader_writes_otherwise_is_as_by_tensorflow(tmp_path: Path) -> None:
    import tensorflow as tf

    numbers = np.random.default_rng(0)
    x, kernel = numbers.normal(size=(3, 4, 5, 2)).astype(np.float32), numbers.normal(size=(2, 2, 2, 2))
    module = tf.Module()
    module.compute = tf.function(
        lambda x: _written_otherwise(x, tf.constant(kernel, tf.float32)),
        input_signature=[tf.TensorSpec([None, 4, 5, 2], name="x")],
    )
    tf.saved_model.save(module, str(tmp_path), signatures={"serving_default": module.compute})
    expected = module.compute(x)
    values = _read(tmp_path).run("serving_default", {"x": x}, list(expected))
    for name, value in values.items():
        np.testing.assert_allclose(value, expected[name], rtol=1e-5, atol=1e-5, err_msg=name)


def _lacking(x: Any, at: Any) -> dict[str, Any]:
    """What OpenVINO's reader (2026.4) lacks."""
    import keras
    import tensorflow as tf

    wide, ordered = tf.transpose(x, [0, 2, 1]), tf.sort(x, axis=-1)
    return {
        "cross": tf.linalg.cross(x[..., :3], x[..., 1:4]),
        "lower": tf.searchsorted(ordered, tf.round(x[..., :2])),
        "upper": tf.searchsorted(ordered, ordered, side="right", out_type=tf.int64),
        "matrix": tf.linalg.diag(x, padding_value=7.0),
        "whole": tf.linalg.diag(tf.cast(x, tf.int32)),
        "diagonal": tf.linalg.diag_part(x),
        "wide_diagonal": tf.linalg.diag_part(wide),
        "trace": tf.linalg.trace(x),
        "with_diagonal": tf.linalg.set_diag(x, x[:, 0, :4]),
        "wide_with_diagonal": tf.linalg.set_diag(wide, x[:, 0, :4]),
        "updated": keras.ops.slice_update(x, [tf.constant(0), at[0], at[1]], x[:, 2:, :3]),
    }


@pytest.mark.parametrize("at", [[0, 0], [1, 2], [9, -3]])
def test_what_its_reader_lacks_is_as_by_tensorflow(tmp_path: Path, at: list[int]) -> None:
    import tensorflow as tf

    module = tf.Module()
    specs = [tf.TensorSpec([None, 4, 5], name="x"), tf.TensorSpec([2], tf.int32, name="at")]
    module.compute = tf.function(_lacking, input_signature=specs)
    tf.saved_model.save(module, str(tmp_path), signatures={"serving_default": module.compute})
    x = np.random.default_rng(0).normal(size=(3, 4, 5)).astype(np.float32) * 4
    x[0, 0, 0] = np.inf
    expected = module.compute(x, at)
    values = _read(tmp_path).run("serving_default", {"x": x, "at": np.array(at, np.int32)}, list(expected))
    for name, value in values.items():
        np.testing.assert_allclose(value, expected[name], rtol=1e-6, err_msg=name)


def test_diagonals_beside_the_main_one_are_refused(tmp_path: Path) -> None:
    import tensorflow as tf

    module = tf.Module()
    module.compute = tf.function(
        lambda x: {"y": tf.linalg.diag(x, k=1)}, input_signature=[tf.TensorSpec([None, 3], name="x")]
    )
    tf.saved_model.save(module, str(tmp_path), signatures={"serving_default": module.compute})
    with pytest.raises(LoadError, match="there is no counterpart for MatrixDiagV3"):
        _read(tmp_path)


def test_other_bits_of_floats_are_refused(tmp_path: Path) -> None:
    import tensorflow as tf

    module = tf.Module()
    module.compute = tf.function(
        lambda x: {"y": tf.bitwise.bitwise_and(tf.bitcast(x, tf.int32), 255)},
        input_signature=[tf.TensorSpec([None], name="x")],
    )
    tf.saved_model.save(module, str(tmp_path), signatures={"serving_default": module.compute})
    with pytest.raises(LoadError, match="there is no counterpart for Bitcast"):
        _read(tmp_path)
