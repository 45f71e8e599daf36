"""Models that somebody else made, served as they are."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import grpc
import onnx
import pytest
import tensorflow as tf
from onnx import TensorProto, helper
from tensorflow_serving.apis import get_model_metadata_pb2, predict_pb2, prediction_service_pb2_grpc

from tests.support.admin import config_text, model_text
from tests.support.server import RunningServer, serve


@pytest.fixture(scope="module")
def server(foreign_models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("foreign")
    models = {"default": "saved_model_half_plus_two_2_versions", "matrix": "matrix_half_plus_two"}
    config = folder / "models.config"
    config.write_text(config_text(*(model_text(name, foreign_models / place) for name, place in models.items())))
    with serve(None, model="default", log_dir=folder, flags=[f"--model_config_file={config}"], poll_s=60) as running:
        replace(running, model="matrix").wait_available()
        yield running


def _predict(server: RunningServer, name: str, values: object) -> predict_pb2.PredictResponse:
    request = predict_pb2.PredictRequest()
    request.model_spec.name = server.model
    request.inputs[name].CopyFrom(tf.make_tensor_proto(values, dtype=tf.float32))
    with grpc.insecure_channel(server.grpc_address) as channel:
        return prediction_service_pb2_grpc.PredictionServiceStub(channel).Predict(request, timeout=60)


def test_half_plus_two_with_zero_padded_versions(foreign_models: Path, server: RunningServer) -> None:
    response = _predict(server, "x", [2.0])
    assert list(response.outputs["y"].float_val) == [3.0]
    assert response.model_spec.version.value == 124
    status, text = server.post("/v1/models/default:predict", b'{"instances": [2.0, 3.0, 4.0]}')
    assert (status, json.loads(text)) == (200, {"predictions": [3.0, 3.5, 4.0]})
    status, text = server.get("/v1/models/default/versions/124/metadata")
    golden = json.loads((foreign_models / "saved_model_half_plus_two_2_versions_metadata.json").read_text())
    document = json.loads(text)
    assert document["metadata"]["signature_def"] == golden["metadata"]["signature_def"]


def test_metadata_over_grpc_names_every_signature(foreign_models: Path, server: RunningServer) -> None:
    request = get_model_metadata_pb2.GetModelMetadataRequest(metadata_field=["signature_def"])
    request.model_spec.name = "default"
    with grpc.insecure_channel(server.grpc_address) as channel:
        response = prediction_service_pb2_grpc.PredictionServiceStub(channel).GetModelMetadata(request, timeout=60)
    definitions = get_model_metadata_pb2.SignatureDefMap()
    response.metadata["signature_def"].Unpack(definitions)
    golden = json.loads((foreign_models / "saved_model_half_plus_two_2_versions_metadata.json").read_text())
    assert set(definitions.signature_def) == set(golden["metadata"]["signature_def"]["signature_def"])


def test_matrices(server: RunningServer) -> None:
    response = _predict(replace(server, model="matrix"), "x", [[[2.0] * 3] * 3] * 4)
    assert tf.make_ndarray(response.outputs["y"]).shape == (4, 3, 3)
    assert set(response.outputs["y"].float_val) == {3.0}


def test_tflite_alone(foreign_models: Path, tmp_path: Path) -> None:
    source = foreign_models / "saved_model_half_plus_two_tflite_with_sigdef" / "00000123"
    shutil.copytree(source, tmp_path / "model" / "123")
    with serve(tmp_path / "model", model="lite", log_dir=tmp_path, flags=["--prefer_tflite_model"]) as server:
        status, text = server.post("/v1/models/lite:predict", b'{"instances": [[2.0], [3.0], [4.0]]}')
        assert "litert" in server.log_text()
        # The file has no signature but the one that TensorFlow Serving reads.
        assert list(_predict(server, "x", [[2.0]]).outputs["y"].float_val) == [3.0]
        document = json.loads(server.get("/v1/models/lite/metadata")[1])
        definition = document["metadata"]["signature_def"]["signature_def"]["serving_default"]
        assert (definition["inputs"]["x"]["name"], definition["outputs"]["y"]["name"]) == ("tflite_input", "y")
    assert status == 200, text
    assert [row[0] for row in json.loads(text)["predictions"]] == pytest.approx([3.0, 3.5, 4.0])


def test_an_onnx_file_without_shapes_takes_every_shape(tmp_path: Path) -> None:
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Neg", ["x"], ["y"])], "g", values[:1], values[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    (tmp_path / "m" / "1").mkdir(parents=True)
    onnx.save(model, tmp_path / "m" / "1" / "model.onnx")
    with serve(tmp_path / "m", model="m", log_dir=tmp_path) as server:
        for value, expected in ((2.0, -2.0), ([2.0, 3.0], [-2.0, -3.0]), ([[2.0], [3.0]], [[-2.0], [-3.0]])):
            answer = server.post("/v1/models/m:predict", json.dumps({"inputs": value}).encode())
            assert (answer[0], json.loads(answer[1])) == (200, {"outputs": expected})
        document = json.loads(server.get("/v1/models/m/metadata")[1])
    definition = document["metadata"]["signature_def"]["signature_def"]["serving_default"]
    assert definition["inputs"]["x"]["tensor_shape"]["unknown_rank"] is True
