"""``labels.json``, as ``modelyard repo`` writes it, seen by a server that runs."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from modelyard.artifact import LABELS_NAME
from modelyard.cli import main
from tests.support.admin import ask, available, config_text, model_text, reload_config
from tests.support.models import publish_affine
from tests.support.server import RunningServer, serve

WAIT_S = 30


@pytest.fixture
def model_dir(tmp_path: Path) -> Path:
    """Versions 1, 2, 3 that multiply by their number; the first is stable."""
    folder = tmp_path / "models" / "m"
    for number in (1, 2, 3):
        publish_affine(folder, slope=float(number), intercept=0.0)
    assert main(["repo", "label", str(folder), "stable", "1"]) == 0
    return folder


@pytest.fixture
def server(model_dir: Path, tmp_path: Path) -> Iterator[RunningServer]:
    with serve(model_dir, model="m", log_dir=tmp_path) as running:
        yield running


def by_label(server: RunningServer, label: str) -> float | tuple[int, str]:
    return ask(server, "m", where=f"/labels/{label}")


def by_label_over_grpc(server: RunningServer, label: str) -> float:
    from tensorflow_serving.apis import predict_pb2, prediction_service_pb2_grpc

    request = predict_pb2.PredictRequest()
    request.model_spec.name, request.model_spec.version_label = "m", label
    request.inputs["x"].dtype = 1
    request.inputs["x"].tensor_shape.dim.add(size=1)
    request.inputs["x"].float_val.append(1.0)
    with grpc.insecure_channel(server.grpc_address) as channel:
        answer = prediction_service_pb2_grpc.PredictionServiceStub(channel).Predict(request, timeout=60)
    assert answer.model_spec.version.value == answer.outputs["y"].float_val[0]
    return float(answer.outputs["y"].float_val[0])


def test_the_file_says_what_is_served(server: RunningServer, model_dir: Path) -> None:
    """One server through the life of a label."""
    server.wait_until(lambda: by_label(server, "stable") == 1.0, WAIT_S, "answering by label")
    # The labelled version is served beside the newest, which the policy asks for.
    assert available(server, "m") == {1, 3}
    assert by_label_over_grpc(server, "stable") == 1.0
    assert ask(server, "m") == 3.0

    assert main(["repo", "promote", str(model_dir), "2"]) == 0
    server.wait_until(lambda: by_label(server, "stable") == 2.0, WAIT_S, "following the promotion")
    assert by_label_over_grpc(server, "stable") == 2.0
    server.wait_until(lambda: available(server, "m") == {2, 3}, WAIT_S, "unloading what no label names")

    # A version that cannot be loaded does not get the label: it stays where it was.
    broken = publish_affine(model_dir, slope=4.0, intercept=0.0)
    (broken.path / "onnx" / "serving_default.onnx").write_bytes(b"damaged")
    assert main(["repo", "label", str(model_dir), "stable", str(broken.number)]) == 0
    assert main(["repo", "label", str(model_dir), "canary", str(broken.number)]) == 0
    server.wait_until(lambda: "version 4" in str(by_label(server, "canary")), WAIT_S, "refusing the damaged version")
    status, text = by_label(server, "canary")  # type: ignore[misc]
    assert status == 400 and "Unrecognized servable version label: canary" in text
    assert f"{LABELS_NAME} gives it to version 4, which is not available" in text
    assert by_label(server, "stable") == 2.0
    assert available(server, "m") == {2, 3}

    # A file that cannot be read changes nothing, and is reported.
    kept = (model_dir / LABELS_NAME).read_bytes()
    (model_dir / LABELS_NAME).write_text("{")
    server.wait_until(lambda: "labels.json cannot be read" in server.log_text(), WAIT_S, "reporting the damage")
    assert by_label(server, "stable") == 2.0
    (model_dir / LABELS_NAME).write_bytes(kept)

    assert main(["repo", "label", str(model_dir), "stable"]) == 0
    server.wait_until(lambda: by_label(server, "stable") not in (1.0, 2.0, 3.0), WAIT_S, "forgetting the label")
    server.wait_until(lambda: available(server, "m") == {3}, WAIT_S, "unloading what no label names")
    shutil.rmtree(broken.path)


def test_the_model_config_wins(server: RunningServer, model_dir: Path) -> None:
    assert main(["repo", "label", str(model_dir), "other", "2"]) == 0
    server.wait_until(lambda: by_label(server, "other") == 2.0, WAIT_S, "answering by label")
    text = config_text(model_text("m", model_dir, labels={"stable": 3}))
    assert reload_config(server, text) == ("OK", "")
    assert by_label(server, "stable") == 3.0
    assert by_label(server, "other") == 2.0
    server.wait_until(lambda: available(server, "m") == {2, 3}, WAIT_S, "unloading version 1")
    assert "the model config wins over labels.json for the labels stable" in server.log_text()
