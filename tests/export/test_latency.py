from __future__ import annotations

import pytest

from modelyard.artifact import Latency
from modelyard.export._latency import choose_runtime


def measured(runtime: str, signature: str, p50_us: float) -> Latency:
    return Latency(format="x", runtime=runtime, signature=signature, batch_size=1, threads=1, p50_us=p50_us)


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([("onnxruntime", "serving_default", 3.0), ("litert", "serving_default", 2.0)], "litert"),
        ([("onnxruntime", "serving_default", 1.0), ("litert", "serving_default", 2.0)], "onnxruntime"),
        # TensorFlow is the fall back however fast it is.
        ([("tensorflow", "serving_default", 0.1), ("litert", "serving_default", 2.0)], "litert"),
        ([("tensorflow", "serving_default", 0.1)], "tensorflow"),
        ([], "tensorflow"),
        # The default signature decides, or the first where there is none.
        (
            [("litert", "a", 1.0), ("litert", "serving_default", 9.0), ("onnxruntime", "serving_default", 5.0)],
            "onnxruntime",
        ),
        ([("onnxruntime", "b", 1.0), ("litert", "b", 2.0), ("litert", "a", 0.1)], "onnxruntime"),
    ],
)
def test_the_choice(rows: list[tuple[str, str, float]], expected: str) -> None:
    assert choose_runtime([measured(*row) for row in rows]) == expected
