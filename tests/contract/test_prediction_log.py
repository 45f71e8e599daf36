"""logging_config: what TensorFlow reads of the files, what warms up with them, and what sends them again."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import psutil
import pytest
import tensorflow as tf
import tritonclient.grpc
from tensorflow_serving.apis import (
    classification_pb2,
    inference_pb2,
    predict_pb2,
    prediction_log_pb2,
    prediction_service_pb2_grpc,
    regression_pb2,
)

from modelyard.loadtests.cli import main as loadtest
from tests.support.admin import TENSORFLOW, ask, available, config_text, model_text, reload_config
from tests.support.metrics import METRICS_PATH, monitoring_flag, scrape, value
from tests.support.models import publish_affine, publish_slow
from tests.support.saved_models import save_tf1_half_plus_two
from tests.support.server import RunningServer, run_to_end, serve
from tests.support.waiting import until_settled

COUNT = ":tensorflow:serving:request_log_count"


def logged(name: str, base_path: Path, prefix: Path, rate: float) -> str:
    collector = f'log_collector_config {{ type: "tfrecord" filename_prefix: "{prefix}" }}'
    config = f"logging_config {{ {collector} sampling_config {{ sampling_rate: {rate} }} }}"
    return model_text(name, base_path, platform=f"{TENSORFLOW} {config}")


def records(paths: list[Path]) -> list[Any]:
    found = []
    for data in tf.data.TFRecordDataset([str(path) for path in paths]).as_numpy_iterator():
        message = prediction_log_pb2.PredictionLog()
        message.ParseFromString(data)
        found.append(message)
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("log")
    publish_affine(folder / "affine", slope=2.0, intercept=1.0)
    save_tf1_half_plus_two(folder / "tf1" / "1")
    (folder / "logs").mkdir()
    return folder


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[RunningServer]:
    """Both models log all, in files of a second; the version of one is chosen by a traffic rule."""
    config = folder / "models.config"
    models = (logged(name, folder / name, folder / "logs" / name, 1.0) for name in ("affine", "tf1"))
    config.write_text(config_text(*models))
    (folder / "traffic.config").write_text('model { name: "affine" split { version: 1 } }')
    flags = [
        f"--model_config_file={config}", monitoring_flag(folder), "--prediction_log_max_seconds=1",
        f"--version_traffic_file={folder / 'traffic.config'}",
    ]  # fmt: skip
    with serve(None, model="affine", log_dir=folder, flags=flags) as running:
        running.wait_until(lambda: available(running, "tf1") == {1}, 60, "tf1")
        yield running


@pytest.fixture(scope="module")
def files(server: RunningServer, folder: Path) -> list[Path]:
    """Each kind of call was made once, and one failed."""
    with grpc.insecure_channel(server.grpc_address) as channel:
        stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
        predict = predict_pb2.PredictRequest()
        predict.model_spec.name = "affine"
        predict.inputs["x"].CopyFrom(tf.make_tensor_proto([1.0, 2.0]))
        assert list(stub.Predict(predict, timeout=30).outputs["y"].float_val) == [3.0, 5.0]
        predict.inputs["z"].CopyFrom(tf.make_tensor_proto([1.0]))
        with pytest.raises(grpc.RpcError):
            stub.Predict(predict, timeout=30)

        example = tf.train.Example()
        example.features.feature["x"].float_list.value.append(4.0)
        classify = classification_pb2.ClassificationRequest()
        classify.model_spec.name, classify.model_spec.signature_name = "tf1", "classify_with_labels"
        classify.input.example_list.examples.append(example)
        stub.Classify(classify, timeout=30)
        regress = regression_pb2.RegressionRequest()
        regress.model_spec.name, regress.model_spec.signature_name = "tf1", "regress_x_to_y"
        regress.input.example_list.examples.append(example)
        stub.Regress(regress, timeout=30)
        multi = inference_pb2.MultiInferenceRequest()
        multi.input.example_list.examples.append(example)
        for signature, method in (("regress_x_to_y2", "regress"), ("classify_x_to_y", "classify")):
            task = multi.tasks.add(method_name=f"tensorflow/serving/{method}")
            task.model_spec.name, task.model_spec.signature_name = "tf1", signature
        stub.MultiInference(multi, timeout=30)
    assert ask(server, "affine", where="/versions/1", x=7.0) == 15.0
    status, _ = server.post(
        "/v2/models/affine/infer",
        json.dumps({"inputs": [{"name": "x", "shape": [1], "datatype": "FP32", "data": [8.0]}]}).encode(),
    )
    assert status == 200
    client = tritonclient.grpc.InferenceServerClient(server.grpc_address)
    tensor = tritonclient.grpc.InferInput("x", [1], "FP32")
    tensor.set_data_from_numpy(np.array([9.0], np.float32))
    client.infer("affine", [tensor])
    client.close()
    status, _ = server.post("/v1/models/tf1:regress", b'{"signature_name": "regress_x_to_y", "examples": [{"x": 6.0}]}')
    assert status == 200

    def counted() -> list[float]:
        page = scrape(server)
        return [value(page, COUNT, model_name=name, status_code="OK") for name in ("affine", "tf1")]

    server.wait_until(lambda: counted() == [4, 4], 30, "8 records")
    logs = folder / "logs"
    server.wait_until(lambda: len(list(logs.glob("*.tfrecord"))) == 2 and not list(logs.glob(".*")), 30, "two files")
    return sorted(logs.glob("*.tfrecord"))


def test_every_call_is_logged_as_what_it_means(files: list[Path]) -> None:
    affine, tf1 = (records([path]) for path in files)
    predictions = {tuple(tf.make_ndarray(each.predict_log.request.inputs["x"])): each for each in affine}
    assert set(predictions) == {(1.0, 2.0), (7.0,), (8.0,), (9.0,)}
    for inputs, log in predictions.items():
        outputs = tf.make_ndarray(log.predict_log.response.outputs["y"])
        assert outputs.tolist() == [2 * x + 1 for x in inputs]
        spec = log.log_metadata.model_spec
        assert (spec.name, spec.version.value, spec.signature_name) == ("affine", 1, "serving_default")
        assert log.log_metadata.sampling_config.sampling_rate == 1.0
        assert log.log_metadata.timestamp_secs > 1.7e9
    # As the caller named it, whatever a traffic rule has chosen.
    assert predictions[7.0,].predict_log.request.model_spec.version.value == 1
    assert not predictions[1.0, 2.0].predict_log.request.model_spec.HasField("version")
    classify, *regress, multi = sorted(tf1, key=lambda log: log.WhichOneof("log_type") != "classify_log")
    assert {log.WhichOneof("log_type") for log in (*regress, multi)} == {"regress_log", "multi_inference_log"}
    (row,) = classify.classify_log.response.result.classifications
    assert [(each.label, each.score) for each in row.classes] == [("half", 4.0)]
    by_kind = {log.WhichOneof("log_type"): log for log in tf1}
    first, second = by_kind["multi_inference_log"].multi_inference_log.response.results
    assert first.regression_result.regressions[0].value == 5.0
    assert second.classification_result.classifications[0].classes[0].score == 4.0
    values = [
        log.regress_log.response.result.regressions[0].value
        for log in tf1
        if log.WhichOneof("log_type") == "regress_log"
    ]
    assert sorted(values) == [4.0, 5.0]


@pytest.mark.parametrize("index", [0, 1])
def test_the_load_test_sends_them_again(server: RunningServer, files: list[Path], tmp_path: Path, index: int) -> None:
    report = tmp_path / "report"
    arguments = ["run", "--replay", str(files[index]), "--at-rate", "--rate", "20", "-t", "1", "--max-error-rate", "0"]
    assert loadtest([*arguments, "--host-grpc", server.grpc_address, "--report", str(report)]) == 0


def test_a_version_warms_up_with_them(server: RunningServer, folder: Path, files: list[Path], tmp_path: Path) -> None:
    for path in files:
        name = path.name.partition("-")[0]
        version = tmp_path / name
        shutil.copytree(folder / name / "1", version)
        (version / "manifest.json").unlink(missing_ok=True)
        (version / "assets.extra").mkdir()
        shutil.copy(path, version / "assets.extra" / "tf_serving_warmup_requests")
        version.rename(folder / name / "2")
    for name in ("affine", "tf1"):
        server.wait_until(lambda name=name: 2 in available(server, name), 60, f"{name} 2")
        labels = {"model_path": str(folder / name / "2"), "status": "success"}
        assert value(scrape(server), ":tensorflow:serving:model_warmup_records_read", **labels) == 4
        # Other tests ask for version 1.
        shutil.rmtree(folder / name / "2")
        server.wait_until(lambda name=name: available(server, name) == {1}, 60, f"{name} 1")


def settled(server: RunningServer) -> float:
    """The records of affine, once the thread that writes them has nothing to do."""
    return float(until_settled(lambda: value(scrape(server), COUNT, model_name="affine", status_code="OK")))


def test_a_share_is_chosen_and_the_rest_is_the_core_s(tmp_path: Path) -> None:
    publish_affine(tmp_path / "affine", slope=2.0, intercept=0.0)
    (tmp_path / "logs").mkdir()
    config = tmp_path / "models.config"
    config.write_text(config_text(logged("affine", tmp_path / "affine", tmp_path / "logs" / "a", 0.25)))
    flags = [f"--model_config_file={config}", monitoring_flag(tmp_path), "--prediction_log_max_records=50"]
    with serve(None, model="affine", log_dir=tmp_path, flags=flags) as server:
        request = predict_pb2.PredictRequest()
        request.model_spec.name = "affine"
        request.inputs["x"].CopyFrom(tf.make_tensor_proto([1.0]))

        def send(times: int) -> float:
            with grpc.insecure_channel(server.grpc_address) as channel:
                predict = prediction_service_pb2_grpc.PredictionServiceStub(channel).Predict
                for call in [predict.future(request, timeout=60) for _ in range(times)]:
                    assert call.result().outputs["y"].float_val[0] == 2.0
            return settled(server)

        count = send(1000)
        # Six standard deviations of a binomial distribution: 13.7.
        assert abs(count - 250) < 82
        # Whole files are there, and what is being written is hidden.
        assert len(list((tmp_path / "logs").glob("a-*.tfrecord"))) == count // 50
        # Of all requests none comes to the core, which must hear of it all the same when that is over.
        prefix = tmp_path / "logs" / "a"
        assert reload_config(server, config_text(logged("affine", tmp_path / "affine", prefix, 1.0))) == ("OK", "")
        send(1)
        before = settled(server)
        assert send(100) == before + 100
        assert reload_config(server, config_text(logged("affine", tmp_path / "affine", prefix, 0.0))) == ("OK", "")
        send(1)
        before = settled(server)
        assert send(100) == before
    paths = list((tmp_path / "logs").iterdir())
    assert not [path for path in paths if path.name.startswith(".")]
    sizes = sorted(len(records([path])) for path in paths)
    assert sum(sizes) == before and set(sizes[1:]) == {50}


def test_the_files_are_whole_though_another_model_computes_at_the_stop(tmp_path: Path) -> None:
    publish_affine(tmp_path / "affine", slope=2.0, intercept=0.0)
    # Longer than the stop waits, also on a machine that does ten loops in a millisecond.
    publish_slow(tmp_path / "slow", loops=60_000)
    (tmp_path / "logs").mkdir()
    config = tmp_path / "models.config"
    models = logged("affine", tmp_path / "affine", tmp_path / "logs" / "a", 1.0), model_text("slow", tmp_path / "slow")
    config.write_text(config_text(*models))
    flags = [f"--model_config_file={config}", "--drain_seconds=1"]
    with (
        serve(None, model="affine", log_dir=tmp_path, flags=flags) as server,
        ThreadPoolExecutor(1) as pool,
    ):
        server.wait_until(lambda: available(server, "affine") and available(server, "slow"), 150, "slow")
        for _ in range(5):
            assert server.post("/v1/models/affine:predict", b'{"instances": [1.0]}')[0] == 200
        process = psutil.Process(server.process.pid)
        busy = process.cpu_times().user
        pool.submit(server.post, "/v1/models/slow:predict", b'{"instances": [1.0]}')
        server.wait_until(lambda: process.cpu_times().user > busy + 0.5, 60, "computing")
        server.process.terminate()
        assert server.process.wait(timeout=30) == 0
        assert "though a thread has not ended" in server.log_text()
    (path,) = (tmp_path / "logs").iterdir()
    assert (path.suffix, len(records([path]))) == (".tfrecord", 5)


@pytest.mark.parametrize(
    ("collector", "rate", "complaint"),
    [
        ('type: "kafka" filename_prefix: "/tmp/x"', 1.0, "log_collector_config.type 'kafka'; expected 'tfrecord'"),
        ('filename_prefix: "logs/x"', 1.0, "filename_prefix 'logs/x'; expected an absolute path"),
        ('filename_prefix: "/tmp/"', 1.0, "filename_prefix '/tmp/'; expected an absolute path"),
        ('filename_prefix: "/nowhere/x"', 1.0, "/nowhere is no folder that the server may write to"),
        (f'filename_prefix: "/{300 * "x"}/x"', 1.0, "xxx is no folder that the server may write to"),
        ('filename_prefix: "/tmp/x"', 1.5, "sampling_rate 1.5; expected 0 to 1"),
    ],
)
def test_what_makes_no_sense_is_refused(
    server: RunningServer, folder: Path, collector: str, rate: float, complaint: str
) -> None:
    config = f"logging_config {{ log_collector_config {{ {collector} }} sampling_config {{ sampling_rate: {rate} }} }}"
    text = config_text(model_text("affine", folder / "affine", platform=f"{TENSORFLOW} {config}"))
    code, message = reload_config(server, text)
    assert code != "OK" and complaint in message
    assert server.get(METRICS_PATH)[0] == 200


def test_a_flag_that_makes_no_sense_is_refused(tmp_path: Path) -> None:
    flags = [f"--model_base_path={tmp_path}", "--prediction_log_max_bytes=0"]
    code, output = run_to_end(*flags)
    assert code != 0 and "--prediction_log_max_bytes=0; expected more than 0." in output
