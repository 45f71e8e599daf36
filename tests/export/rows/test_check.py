"""What an export finds out about rows, and what it does not try."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from modelyard.artifact import SignatureFunction, TensorSpec
from modelyard.export import ExportOptions, export
from tests.export.rows.test_walk import newton

OPTIONS = ExportOptions(min_examples=16, latency_calls=10, measure_seconds=0.1, runtimes=(), isolate=False)
K = TensorSpec(name="k", dtype="int32", shape=(-1,))
X = TensorSpec(name="x", dtype="float32", shape=(-1, 4))


def test_outliers_do_not_meet_a_loop_that_waits_for_numbers(tmp_path: Path) -> None:
    # Float32 cannot bring the square of a large root within 1e-4 of its number: with an outlier the loop has no end.
    data = {"x": np.random.default_rng(0).uniform(0.1, 2.0, (20, 4)).astype(np.float32)}
    signatures = {"serving_default": SignatureFunction(inputs=(X,), function=newton)}
    report = export(tf.Module(), tmp_path / "m", signatures=signatures, data=data, formats=("onnx",), options=OPTIONS)
    assert report.manifest.formats["onnx"].verify.rows["serving_default"].verdict == "dependent"


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        # Nothing is seen of it among the first examples, and no number is an outlier.
        (lambda k: {"y": k + tf.size(tf.where(k > 250))}, "another one in a batch of 7 than alone"),
        (lambda k: {"y": k + tf.size(tf.where(k > 300))}, "integers have no outliers to try"),
        (
            lambda k: {"y": k + tf.gather(tf.math.unsorted_segment_max(k, k, 999), k)},
            "integers have no outliers to try",
        ),
    ],
)
def test_rows_of_integers_are_not_mixed_by_what_is_not_known(function: Any, reason: str, tmp_path: Path) -> None:
    data = {"k": np.arange(256, dtype=np.int32)}
    signatures = {"serving_default": SignatureFunction(inputs=(K,), function=function)}
    report = export(tf.Module(), tmp_path / "m", signatures=signatures, data=data, formats=("onnx",), options=OPTIONS)
    found = report.manifest.formats["onnx"].verify.rows["serving_default"]
    assert found.verdict == "dependent"
    assert reason in found.reason
