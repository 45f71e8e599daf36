"""Servers that the contract tests speak to, as strangers would: by the official stubs and by plain HTTP."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from modelyard.training.data import load_fashion_mnist
from tests.support.classifier import publish_classifier
from tests.support.models import publish_affine, publish_words, save_half_plus_two
from tests.support.server import RunningServer, serve


@pytest.fixture(scope="session")
def half_server(session_dir: Path) -> Iterator[RunningServer]:
    """A raw SavedModel with several signatures, in the TensorFlow backend."""
    base_path = session_dir / "half"
    save_half_plus_two(base_path / "7")
    with serve(base_path, model="half", log_dir=session_dir, poll_s=60) as server:
        yield server


@pytest.fixture(scope="session")
def half_channel(half_server: RunningServer) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(half_server.grpc_address) as channel:
        yield channel


@pytest.fixture(scope="session")
def foreign_models() -> Path:
    folder = os.environ.get("MODELYARD_FOREIGN_MODELS")
    if not folder:
        pytest.skip("MODELYARD_FOREIGN_MODELS names no folder of foreign SavedModels")
    return Path(folder)


@pytest.fixture(scope="session")
def console_server(session_dir: Path) -> Iterator[RunningServer]:
    """A repository with the console on: images, class names, strings, labels, and a version that cannot be loaded."""
    folder = session_dir / "console"
    data = load_fashion_mnist()
    manifest = publish_classifier(folder / "fashion", data).path / "manifest.json"
    document = json.loads(manifest.read_text())
    del document["sha256"]
    document["formats"]["onnx"]["verify"]["by_class"] = [
        {"name": name, "examples": 1, "before": 1.0, "after": 1.0} for name in data.class_names
    ]
    manifest.write_text(json.dumps(document))
    publish_words(folder / "words")
    publish_affine(folder / "affine", slope=2.0, intercept=1.0)
    publish_affine(folder / "affine", slope=3.0, intercept=1.0)
    broken = folder / "affine" / "3"
    broken.mkdir()
    (broken / "model.onnx").write_bytes(b"no model")
    (broken / "report.html").write_text(
        "<title>report</title><h1>Checked</h1><script>document.title = 'scripted'</script>"
    )
    (folder / "affine" / "labels.json").write_text('{"stable": 1, "canary": 2}')
    flags = ["--console", "--rest_api_strict_json", f"--model_repository={folder}", "--max_num_load_retries=0"]
    with serve(None, model="fashion", log_dir=session_dir, flags=flags, poll_s=60) as server:
        for model in ("words", "affine"):
            server.wait_until(lambda name=model: '"AVAILABLE"' in server.get(f"/v1/models/{name}")[1], 60, model)
        yield server
