"""Requests without a row to models that end the process of their runtime on one."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from modelyard.clients import connect
from modelyard.errors import InvalidRequestError
from modelyard.wire import serving_pb2, tensorflow_pb2
from tests.contract.test_four_apis import APIS
from tests.support.recurrent import recurrent_model
from tests.support.server import RunningServer, serve

BATCHING = "max_batch_size { value: 8 } batch_timeout_micros { value: 1000 } num_batch_threads { value: 1 }"


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recurrent")
    for kind in ("LSTM", "GRU"):
        recurrent_model(kind, folder / kind / "3" / "onnx" / "serving_default.onnx")
    return folder


@pytest.fixture(scope="module", params=["", "--runtime=openvino", "batching", "--tensorflow_intra_op_parallelism=2"])
def server(
    models: Path, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("server")
    (folder / "batching.txt").write_text(BATCHING)
    configs = [
        f'config {{ name: "{kind}" base_path: "{models / kind}" model_platform: "tensorflow" }}'
        for kind in ("LSTM", "GRU")
    ]
    (folder / "models.txt").write_text(f"model_config_list {{ {' '.join(configs)} }}")
    flags = [f"--model_config_file={folder / 'models.txt'}"]
    if request.param == "batching":
        flags += ["--enable_batching", f"--batching_parameters_file={folder / 'batching.txt'}"]
    elif request.param:
        flags.append(request.param)
    with serve(None, model="LSTM", log_dir=folder, flags=flags) as running:
        running.wait_until(lambda: '"AVAILABLE"' in running.get("/v1/models/GRU")[1], 60, "GRU AVAILABLE")
        yield running


@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
@pytest.mark.parametrize("api", [name for name in APIS if name != "tfs_rest"])
def test_no_rows_have_answers_of_the_right_shapes(server: RunningServer, api: str, kind: str) -> None:
    answers = APIS[api](server, kind, "", {"x": np.zeros((0, 4, 3), np.float32)}, ())
    assert {name: value.shape for name, value in answers.items()} == {"state": (0, 5), "states": (0, 4, 5)}
    some = APIS[api](server, kind, "", {"x": np.ones((2, 4, 3), np.float32)}, ("state",))
    assert some["state"].shape == (2, 5)
    assert np.any(some["state"])


@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_rows_without_steps_are_refused(server: RunningServer, kind: str) -> None:
    with connect(f"grpc://{server.grpc_address}") as client:
        with pytest.raises(InvalidRequestError, match=r"'x' has shape \[2, 0, 3\], which holds no value"):
            client.predict(kind, {"x": np.zeros((2, 0, 3), np.float32)})
        assert client.predict(kind, {"x": np.ones((1, 4, 3), np.float32)})["state"].shape == (1, 5)


@pytest.mark.parametrize(
    ("path", "body", "told"),
    [
        ("/v1/models/LSTM:predict", {"inputs": {"x": []}}, "'x' has shape [0]"),
        ("/v1/models/LSTM:predict", {"instances": []}, "No values in 'instances' array"),
        # The one form in which JSON has rows without steps: nested lists say no size behind a zero.
        (
            "/v2/models/LSTM/infer",
            {"inputs": [{"name": "x", "datatype": "FP32", "shape": [2, 0, 3], "data": []}]},
            "'x' has shape [2, 0, 3], which holds no value",
        ),
    ],
)
def test_json_without_a_number_is_an_error_and_no_end(server: RunningServer, path: str, body: Any, told: str) -> None:
    status, text = server.post(path, json.dumps(body).encode())
    assert (status, told in json.loads(text)["error"]) == (400, True), text
    assert server.get("/v1/models/LSTM")[0] == 200


def test_a_warm_up_record_without_a_row(models: Path, tmp_path: Path) -> None:
    shutil.copytree(models / "LSTM", tmp_path / "LSTM")
    log = serving_pb2.PredictionLog()
    log.predict_log.request.model_spec.name = "any"
    tensor = log.predict_log.request.inputs["x"]
    tensor.dtype = tensorflow_pb2.DT_FLOAT
    for size in (0, 4, 3):
        tensor.tensor_shape.dim.add(size=size)
    folder = tmp_path / "LSTM" / "3" / "assets.extra"
    folder.mkdir()
    with tf.io.TFRecordWriter(str(folder / "tf_serving_warmup_requests")) as writer:
        writer.write(log.SerializeToString())
    with serve(tmp_path / "LSTM", model="LSTM", log_dir=tmp_path) as running:
        assert "replayed 1 warm-up records" in running.log_text()
