"""Warm-up: TensorFlow Serving's own record files, written by TensorFlow, replayed before a version is available."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import tensorflow as tf
from tensorflow_serving.apis import prediction_log_pb2

from tests.support.admin import ask, states
from tests.support.metrics import monitoring_flag, scrape, value
from tests.support.models import publish_affine
from tests.support.saved_models import save_tf1_half_plus_two
from tests.support.server import RunningServer, serve


def predict_log(x: object = (1.0, 2.0), *, alias: str = "x", signature: str = "") -> bytes:
    log = prediction_log_pb2.PredictionLog()
    request = log.predict_log.request
    # Upstream ignores name and version, and uses the signature.
    request.model_spec.name = "another model"
    request.model_spec.version.value = 99
    request.model_spec.signature_name = signature
    request.inputs[alias].CopyFrom(tf.make_tensor_proto(x))
    return bytes(log.SerializeToString())


def write_records(version: Path, records: Sequence[bytes]) -> Path:
    file = version / "assets.extra" / "tf_serving_warmup_requests"
    file.parent.mkdir()
    with tf.io.TFRecordWriter(str(file)) as writer:
        for record in records:
            writer.write(record)
    return file


def session_run_log() -> bytes:
    log = prediction_log_pb2.PredictionLog()
    log.session_run_log.request.model_spec.name = "m"
    return bytes(log.SerializeToString())


def streamed_log() -> bytes:
    log = prediction_log_pb2.PredictionLog()
    log.predict_streamed_log.request.add().model_spec.name = "m"
    return bytes(log.SerializeToString())


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("warmup")
    publish_affine(folder / "affine", slope=1.0, intercept=0.0)
    flags = [f"--model_base_path={folder / 'affine'}", monitoring_flag(folder)]
    with serve(folder / "affine", model="affine", log_dir=folder, flags=flags) as running:
        yield running


def base_path(server: RunningServer) -> Path:
    return server.log.parent / "affine"


def put(server: RunningServer, prepared: Path) -> int:
    """Moves a prepared version in as the newest."""
    number = max(int(path.name) for path in base_path(server).iterdir()) + 1
    prepared.rename(base_path(server) / str(number))
    return number


BAD = {
    "too many": ([predict_log()] * 1001, "INVALID_ARGUMENT", "exceeds the maximum (1000)"),
    "no proto": ([predict_log(), b"\xff\xff\xff"], "INVALID_ARGUMENT", "Failed to parse record 2"),
    "wrong input": ([predict_log(alias="z")], "INVALID_ARGUMENT", "The model refuses record 1"),
    "wrong dtype": ([predict_log(["text"])], "INVALID_ARGUMENT", "The model refuses record 1"),
    "no signature": ([predict_log(), predict_log(signature="none")], "INVALID_ARGUMENT", "refuses record 2"),
    "session run": ([session_run_log()], "UNIMPLEMENTED", "Unsupported log_type for warmup"),
    "streamed": ([streamed_log()], "UNIMPLEMENTED", "Unsupported log_type for warmup"),
    "nothing in it": ([b""], "UNIMPLEMENTED", "Unsupported log_type for warmup"),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_version_whose_warm_up_fails_is_never_available(server: RunningServer, tmp_path: Path, kind: str) -> None:
    records, code, fragment = BAD[kind]
    version = publish_affine(tmp_path / "new", slope=9.0, intercept=0.0)
    write_records(version.path, records)
    refused(server, put(server, version.path), code, fragment)


@pytest.mark.parametrize(
    "damage",
    ["cut in a record", "cut in a header", "length", "data", "text", "endless"],
)
def test_a_damaged_file(server: RunningServer, tmp_path: Path, damage: str) -> None:
    version = publish_affine(tmp_path / "new", slope=9.0, intercept=0.0)
    file = write_records(version.path, [predict_log()] * 2)
    data = bytearray(file.read_bytes())
    if damage == "cut in a record":
        data = data[:-3]
    elif damage == "cut in a header":
        data = data[: len(data) // 2 + 5]
    elif damage == "length":
        data[0] ^= 1
    elif damage == "data":
        data[20] ^= 1
    elif damage == "text":
        data = bytearray(b"no records at all")
    else:
        data[:8] = b"\xff" * 8
    file.write_bytes(data)
    refused(server, put(server, version.path), "DATA_LOSS", "in TFRecord format")


def refused(server: RunningServer, number: int, code: str, fragment: str) -> None:
    answering = ask(server, "affine")
    server.wait_until(lambda: states(server, "affine").get(number) == "END", 60, f"refusing version {number}")
    (row,) = json.loads(server.get(f"/v1/models/affine/versions/{number}")[1])["model_version_status"]
    assert row["status"]["error_code"] == code, row
    assert fragment in row["status"]["error_message"]
    # The version before goes on.
    assert answering == ask(server, "affine") != 9.0
    failed = {"model_path": str(base_path(server) / str(number)), "status": "fail"}
    page = scrape(server)
    assert value(page, ":tensorflow:serving:model_warmup_latency_count", **failed) == 1
    assert value(page, ":tensorflow:cc:saved_model:load_attempt_count", **failed) == 1


def test_as_many_records_as_there_may_be(server: RunningServer, tmp_path: Path) -> None:
    version = publish_affine(tmp_path / "new", slope=5.0, intercept=0.0)
    write_records(version.path, [predict_log((3.0,))] * 1000)
    number = put(server, version.path)
    server.wait_until(lambda: states(server, "affine").get(number) == "AVAILABLE", 60, "warmed up")
    assert ask(server, "affine") == 5.0
    labels = {"model_path": str(base_path(server) / str(number)), "status": "success"}
    assert value(scrape(server), ":tensorflow:serving:model_warmup_records_read", **labels) == 1000


def test_iterations_and_batching(tmp_path: Path) -> None:
    version = publish_affine(tmp_path / "affine", slope=5.0, intercept=0.0)
    write_records(version.path, [predict_log(), predict_log((1.0,))])
    flags = ["--enable_batching", "--num_request_iterations_for_warmup=3", monitoring_flag(tmp_path)]
    with serve(tmp_path / "affine", model="affine", log_dir=tmp_path, flags=flags) as server:
        assert value(scrape(server), ":tensorflow:serving:batching_session:wrapped_run_count") == 6
        assert "replayed 2 warm-up records" in server.log_text()
        # Nobody asked for these: they are no use of the model.
        for expected in (0, 1):
            (row,) = json.loads(server.get("/v2/models/affine/stats")[1])["model_stats"]
            assert (row["execution_count"], row["inference_count"]) == (expected, expected)
            assert ask(server, "affine") == 5.0


def test_warm_up_may_be_turned_off(tmp_path: Path) -> None:
    version = publish_affine(tmp_path / "affine", slope=5.0, intercept=0.0)
    write_records(version.path, [session_run_log()])
    flags = ["--enable_model_warmup=false"]
    with serve(tmp_path / "affine", model="affine", log_dir=tmp_path, flags=flags) as server:
        assert ask(server, "affine") == 5.0


def test_every_kind_of_record(tmp_path: Path) -> None:
    save_tf1_half_plus_two(tmp_path / "half" / "1")
    bare = prediction_log_pb2.PredictionLog()
    bare.predict_log.request.inputs["x"].CopyFrom(tf.make_tensor_proto([[2.0]]))
    example = tf.train.Example()
    example.features.feature["x"].float_list.value.append(2.0)
    records = [predict_log([[2.0]]), bare.SerializeToString()]
    log = prediction_log_pb2.PredictionLog()
    log.classify_log.request.model_spec.signature_name = "classify_x_to_y"
    log.classify_log.request.input.example_list.examples.append(example)
    records.append(log.SerializeToString())
    log = prediction_log_pb2.PredictionLog()
    log.regress_log.request.model_spec.signature_name = "regress_x_to_y"
    log.regress_log.request.input.example_list.examples.append(example)
    records.append(log.SerializeToString())
    log = prediction_log_pb2.PredictionLog()
    for signature, method in (("regress_x_to_y2", "regress"), ("classify_x_to_y", "classify")):
        task = log.multi_inference_log.request.tasks.add(method_name=f"tensorflow/serving/{method}")
        task.model_spec.name, task.model_spec.signature_name = "any", signature
    log.multi_inference_log.request.input.example_list.examples.append(example)
    records.append(log.SerializeToString())
    write_records(tmp_path / "half" / "1", records)
    with serve(tmp_path / "half", model="half", log_dir=tmp_path) as server:
        assert "replayed 5 warm-up records" in server.log_text()
