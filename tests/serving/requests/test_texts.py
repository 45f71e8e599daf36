"""What is left of paths in texts for callers."""

from __future__ import annotations

import pytest

from modelyard.serving.requests import without_paths


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("/models/a/1/model.onnx is damaged", "model.onnx is damaged"),
        ("s3://bucket/models/a/1/manifest.json: no access.", "manifest.json: no access."),
        ("cannot open '/srv/x/model.tflite': [Errno 2]", "cannot open 'model.tflite': [Errno 2]"),
        ("at /onnxruntime_src/core/graph.cc:123.", "at graph.cc:123."),
        ("base path /my models/a b is empty", "base path a b is empty"),
        # What is no path, or the server's own URL.
        ("POST /v2/repository/models/a/load", "POST /v2/repository/models/a/load"),
        ("a and/or b, text/plain, 1/2", "a and/or b, text/plain, 1/2"),
    ],
)
def test_only_the_last_part_is_left(text: str, left: str) -> None:
    assert without_paths(text, ["/my models/a b", "/my models"]) == left
