"""The document at /openapi.json says what the server does: every path answers, and schemathesis finds no difference."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.server import RunningServer

#: Not the methods that a path does not have: /v1 answers them with 400, as TensorFlow Serving does.
CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
    "negative_data_rejection",
    "missing_required_header",
)
#: What the server does not do, it says with 501; 413 is for shapes that no memory holds.
CONFIG = """
[checks]
not_a_server_error.expected-statuses = ["2xx", "3xx", "4xx", "501"]
negative_data_rejection.expected-statuses = ["400", "404", "413", "501"]
"""


def test_every_path_is_one_of_the_server(console_server: RunningServer) -> None:
    document = json.loads(console_server.get("/openapi.json")[1])
    values = {"model": "affine", "version": 1, "label": "stable"}
    answers = {}
    for path, methods in document["paths"].items():
        for method in methods:
            send = console_server.get if method == "get" else lambda path: console_server.post(path, b"{}")
            status, body = send(path.format(**values))
            answers[method, path] = (status, body)
    wrong = {key: found for key, found in answers.items() if "Not found" in found[1] or "Malformed request" in found[1]}
    assert wrong == {}
    # What needs no body is answered.
    assert {key: found for key, found in answers.items() if key[0] == "get" and found[0] != 200} == {}


def test_models_have_paths_of_their_own_with_examples_that_work(console_server: RunningServer) -> None:
    document = json.loads(console_server.get("/openapi.json")[1])
    tried = []
    for path, methods in document["paths"].items():
        for operation in methods.values():
            content = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
            for name, example in content.get("examples", {}).items():
                status, body = console_server.post(path, json.dumps(example["value"]).encode())
                assert status == 200, body
                tried.append((path, name))
    assert sorted(tried) == [
        ("/v1/models/affine:predict", "serving_default"),
        ("/v1/models/fashion:predict", "image_bytes"),
        ("/v1/models/fashion:predict", "serving_default"),
        ("/v1/models/words:predict", "serving_default"),
    ]


@pytest.mark.skipif(importlib.util.find_spec("schemathesis") is None, reason="schemathesis is not installed")
def test_schemathesis_finds_no_difference(console_server: RunningServer, tmp_path: Path) -> None:
    config = tmp_path / "schemathesis.toml"
    config.write_text(CONFIG)
    done = subprocess.run(
        [
            sys.executable, "-m", "schemathesis.cli", "--config-file", str(config), "run",
            f"{console_server.rest_url}/openapi.json", f"--checks={','.join(CHECKS)}",
            "--phases=examples,coverage,fuzzing", "--max-examples=3", "--continue-on-failure", "--no-color",
            # The same handlers as without a label; of those with a version, two stand for all.
            r"--exclude-path-regex=labels/|versions/\{version\}(?:$|:[cr]|/[mrsc])",
            "--warnings=off", "--seed=1",
        ],
        cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr
    assert " passed" in done.stdout or "No issues found" in done.stdout, done.stdout[-500:]
