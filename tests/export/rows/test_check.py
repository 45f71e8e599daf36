"""What an export finds out about rows, and what it does not try."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import tensorflow as tf

from modelyard.artifact import SignatureFunction, TensorSpec
from modelyard.export import ExportOptions, export
from tests.export.rows.test_walk import newton

X = TensorSpec(name="x", dtype="float32", shape=(-1, 4))


def test_outliers_do_not_meet_a_loop_that_waits_for_numbers(tmp_path: Path) -> None:
    # Float32 cannot bring the square of a large root within 1e-4 of its number: with an outlier the loop has no end.
    data = {"x": np.random.default_rng(0).uniform(0.1, 2.0, (20, 4)).astype(np.float32)}
    signatures = {"serving_default": SignatureFunction(inputs=(X,), function=newton)}
    options = ExportOptions(min_examples=16, latency_calls=10, measure_seconds=0.1, runtimes=())
    report = export(tf.Module(), tmp_path / "m", signatures=signatures, data=data, formats=("onnx",), options=options)
    assert report.manifest.formats["onnx"].verify.rows["serving_default"].verdict == "dependent"
