"""The Open Inference Protocol over gRPC, through the official tritonclient and its messages."""

from __future__ import annotations

import queue
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton
from tritonclient.grpc import model_config_pb2, service_pb2, service_pb2_grpc
from tritonclient.utils import InferenceServerException

from tests.support.metrics import monitoring_flag, scrape
from tests.support.models import publish_affine, save_double
from tests.support.server import RunningServer, serve

_STREAM = "ModelStreamInfer"


@pytest.fixture
def client(half_server: RunningServer) -> Iterator[triton.InferenceServerClient]:
    with triton.InferenceServerClient(half_server.grpc_address) as client:
        yield client


@pytest.fixture
def stub(half_channel: grpc.Channel) -> Any:
    return service_pb2_grpc.GRPCInferenceServiceStub(half_channel)


def typed_request(*values: float, **fields: Any) -> service_pb2.ModelInferRequest:
    message = service_pb2.ModelInferRequest(model_name="half", **fields)
    item = message.inputs.add(name="x", datatype="FP32", shape=[len(values)])
    item.contents.fp32_contents.extend(values)
    return message


def fp32(data: bytes) -> list[float]:
    values: list[float] = np.frombuffer(data, "<f4").tolist()
    return values


def test_health(client: triton.InferenceServerClient) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("half")
    assert client.is_model_ready("half", "7")
    assert not client.is_model_ready("half", "8")
    assert not client.is_model_ready("nobody")


def test_metadata(client: triton.InferenceServerClient) -> None:
    assert client.get_server_metadata().name == "modelyard"
    metadata = client.get_model_metadata("half")
    assert (metadata.name, list(metadata.versions), metadata.platform) == ("half", ["7"], "tensorflow_savedmodel")
    tensors = [(item.name, item.datatype, list(item.shape)) for item in (*metadata.inputs, *metadata.outputs)]
    assert tensors == [("x", "FP32", [-1]), ("y", "FP32", [-1])]


def test_configuration(client: triton.InferenceServerClient) -> None:
    config = client.get_model_config("half").config
    assert (config.name, config.platform, config.backend) == ("half", "tensorflow_savedmodel", "tensorflow")
    assert (config.version_policy.latest.num_versions, config.max_batch_size) == (1, 0)
    tensors = [(item.name, item.data_type, list(item.dims)) for item in (*config.input, *config.output)]
    assert tensors == [("x", model_config_pb2.TYPE_FP32, [-1]), ("y", model_config_pb2.TYPE_FP32, [-1])]
    with pytest.raises(InferenceServerException, match="Servable not found"):
        client.get_model_config("nobody")


def test_a_batch_dimension_is_left_out_of_the_configuration(tmp_path: Path) -> None:
    save_double(tmp_path / "double" / "1", shape=["batch", 3, "width"])
    limits = tmp_path / "batching.config"
    limits.write_text("max_batch_size { value: 12 }")
    for flags, rows in (([], 64), (["--enable_batching", f"--batching_parameters_file={limits}"], 12)):
        with (
            serve(tmp_path / "double", model="double", log_dir=tmp_path, flags=flags) as server,
            triton.InferenceServerClient(server.grpc_address) as client,
        ):
            config = client.get_model_config("double").config
            (metadata,) = client.get_model_metadata("double").inputs
        assert (list(metadata.shape), config.max_batch_size) == ([-1, 3, -1], rows)
        assert list(config.input[0].dims) == list(config.output[0].dims) == [3, -1]
        # The batch scheduler puts requests together, whatever loading found.
        assert config.HasField("dynamic_batching") or not flags


@pytest.mark.parametrize(
    ("path", "there"),
    [
        (
            "inference.GRPCInferenceService/SystemSharedMemoryRegister",
            "of that service it has LogSettings, ModelConfig, ModelInfer,",
        ),
        ("tensorflow.serving.SessionService/SessionRun", "tensorflow.serving.PredictionService."),
        ("nothing", "it has "),
    ],
)
def test_a_method_that_there_is_not_is_named(half_channel: grpc.Channel, path: str, there: str) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        half_channel.unary_unary(f"/{path}", bytes, bytes)(b"", timeout=30)
    details = str(caught.value.details())
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
    assert details.startswith(f"modelyard does not implement {path}; ")
    assert there in details


def test_sequences_are_refused(client: triton.InferenceServerClient) -> None:
    tensor = triton.InferInput("x", [1], "FP32")
    tensor.set_data_from_numpy(np.array([2], np.float32))
    # What it sends where it is not told of any.
    assert client.infer("half", [tensor], sequence_id=0).as_numpy("y").tolist() == [3.0]
    for sequence in (5, "mine"):
        with pytest.raises(InferenceServerException, match="keeps no state between requests"):
            client.infer("half", [tensor], sequence_id=sequence)


def test_typed_contents_are_answered_raw(stub: Any) -> None:
    response = stub.ModelInfer(typed_request(2, 3, 4, id="17", model_version="7"), timeout=30)
    assert (response.model_name, response.model_version, response.id) == ("half", "7", "17")
    (output,) = response.outputs
    assert (output.name, output.datatype, list(output.shape)) == ("y", "FP32", [3])
    assert not output.HasField("contents")
    assert fp32(response.raw_output_contents[0]) == [3.0, 3.5, 4.0]


def test_parameters_are_echoed(stub: Any) -> None:
    message = typed_request(2)
    message.parameters["flag"].bool_param = True
    message.parameters["count"].int64_param = -3
    message.parameters["note"].string_param = "ü"
    message.parameters["share"].double_param = 0.5
    message.parameters["big"].uint64_param = (1 << 64) - 1
    response = stub.ModelInfer(message, timeout=30)
    assert dict(response.parameters) == dict(message.parameters)


@pytest.mark.parametrize(
    ("datatype", "field", "values", "signature", "name"),
    [
        ("INT64", "int64_contents", [1, 2], "two_inputs", "count"),
        ("BYTES", "bytes_contents", [b"a"], "strings", "text"),
    ],
)
def test_typed_fields(stub: Any, datatype: str, field: str, values: list[Any], signature: str, name: str) -> None:
    message = service_pb2.ModelInferRequest(model_name="half")
    message.parameters["signature_name"].string_param = signature
    item = message.inputs.add(name=name, datatype=datatype, shape=[len(values)])
    getattr(item.contents, field).extend(values)
    if signature == "two_inputs":
        other = message.inputs.add(name="x", datatype="FP32", shape=[2])
        other.contents.fp32_contents.extend([2.0, 4.0])
    wanted = {"two_inputs": "next", "strings": "raw_bytes"}[signature]
    message.outputs.add(name=wanted)
    (raw,) = stub.ModelInfer(message, timeout=30).raw_output_contents
    assert raw == (np.array([2, 3], "<i8").tobytes() if signature == "two_inputs" else b"\x01\x00\x00\x00a")


def test_classification(client: triton.InferenceServerClient) -> None:
    tensor = triton.InferInput("x", [3], "FP32")
    tensor.set_data_from_numpy(np.array([2, 6, 4], np.float32))
    result = client.infer("half", [tensor], outputs=[triton.InferRequestedOutput("y", class_count=1)])
    assert result.as_numpy("y").tolist() == [b"5.000000:1"]


def test_the_stream_answers_in_order_and_outlives_an_error(stub: Any) -> None:
    empty = typed_request(4, id="c")
    empty.parameters["triton_enable_empty_final_response"].bool_param = True
    wrong = typed_request(1, id="b")
    wrong.inputs[0].name = "z"
    answers = list(stub.ModelStreamInfer(iter([typed_request(2, id="a"), wrong, empty]), timeout=30))
    assert [answer.infer_response.id for answer in answers] == ["a", "b", "c"]
    assert [bool(answer.error_message) for answer in answers] == [False, True, False]
    assert "Inputs expected to be in the set {x}" in answers[1].error_message
    assert fp32(answers[2].infer_response.raw_output_contents[0]) == [4.0]


def test_each_answer_of_a_stream_is_the_last_of_its_request(client: triton.InferenceServerClient) -> None:
    answers: queue.Queue[triton.InferResult] = queue.Queue()
    client.start_stream(lambda result, error: answers.put(error or result))
    tensor = triton.InferInput("x", [1], "FP32")
    tensor.set_data_from_numpy(np.array([2], np.float32))
    for enable in (False, True):
        client.async_stream_infer("half", [tensor], enable_empty_final_response=enable)
        response = answers.get(timeout=30).get_response()
        assert response.parameters["triton_final_response"].bool_param
        assert list(response.parameters) == ["triton_final_response"]


def test_a_stream_is_answered_without_pauses(stub: Any) -> None:
    sent = threading.Semaphore()

    def one_after_the_other() -> Iterator[service_pb2.ModelInferRequest]:
        for _ in range(51):
            sent.acquire()
            yield typed_request(2)

    times = []
    last = time.perf_counter()
    for answer in stub.ModelStreamInfer(one_after_the_other(), timeout=30):
        assert not answer.error_message
        now = time.perf_counter()
        times.append(now - last)
        last = now
        sent.release()
    # Half of them, and less than TCP waits for the other side (40 ms): others may have the machine in between.
    assert len(times) == 51 and statistics.median(times) < 0.02


def test_requests_of_a_stream_are_computed_together(tmp_path: Path) -> None:
    publish_affine(tmp_path / "half", slope=0.5, intercept=2.0)
    batching = tmp_path / "batching.txt"
    batching.write_text("max_batch_size { value: 8 } batch_timeout_micros { value: 500000 }")
    flags = ["--enable_batching", f"--batching_parameters_file={batching}"]
    with (
        serve(tmp_path / "half", model="half", log_dir=tmp_path, flags=flags) as server,
        grpc.insecure_channel(server.grpc_address) as channel,
    ):
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        messages = [typed_request(value, id=str(value)) for value in range(32)]
        answers = list(stub.ModelStreamInfer(iter(messages), timeout=60))
        assert [answer.infer_response.id for answer in answers] == [str(value) for value in range(32)]
        found = [fp32(answer.infer_response.raw_output_contents[0]) for answer in answers]
        assert found == [[0.5 * value + 2] for value in range(32)]
        (statistics,) = stub.ModelStatistics(service_pb2.ModelStatisticsRequest(name="half")).model_stats
    # One after the other, each would be a batch of its own.
    assert statistics.inference_count == 32 and statistics.execution_count <= 16


def test_a_stream_waits_for_a_client_that_reads_nothing(stub: Any) -> None:
    size = 100_000
    large = typed_request(*([1.0] * size))
    # Of what so many rows of a stream take, the server has known nothing.
    assert not next(stub.ModelStreamInfer(iter([large]), timeout=60)).error_message
    sent = 0

    def messages() -> Iterator[service_pb2.ModelInferRequest]:
        nonlocal sent
        while sent < 1000:
            sent += 1
            yield large

    call = stub.ModelStreamInfer(messages(), timeout=60)
    last = -1
    while last != sent:
        last = sent
        time.sleep(0.5)
    # Those that it answered, computes and lets wait, and what is on its way.
    assert sent < 300
    for _ in range(300):
        answer = next(call)
        assert not answer.error_message
        assert len(answer.infer_response.raw_output_contents[0]) == 4 * size
    call.cancel()


def test_each_message_of_a_stream_is_a_request_in_the_metrics(tmp_path: Path) -> None:
    publish_affine(tmp_path / "half", slope=0.5, intercept=2.0)
    with (
        serve(tmp_path / "half", model="half", log_dir=tmp_path, flags=[monitoring_flag(tmp_path)]) as server,
        grpc.insecure_channel(server.grpc_address) as channel,
    ):
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        wrong, unknown = typed_request(1), typed_request(1)
        wrong.inputs[0].name, unknown.model_name = "z", "nobody"
        answers = stub.ModelStreamInfer(iter([typed_request(2), wrong, unknown, typed_request(4)]), timeout=30)
        assert [bool(answer.error_message) for answer in answers] == [False, True, True, False]
        series = scrape(server)
    count, latency = ":tensorflow:serving:request_count", ":tensorflow:serving:request_latency_count"
    found = {tuple(sorted(labels)): value for (name, labels), value in series.items() if name == count}
    assert found == {
        (("model_name", "half"), ("status", "OK")): 2,
        (("model_name", "half"), ("status", "INVALID_ARGUMENT")): 1,
        (("model_name", ""), ("status", "NOT_FOUND")): 1,
    }
    assert [value for (name, labels), value in series.items() if name == latency and ("API", _STREAM) in labels] == [2]


def _mixed(message: service_pb2.ModelInferRequest) -> None:
    message.raw_input_contents.append(b"1234")


def _raw(*parts: bytes) -> Callable[[service_pb2.ModelInferRequest], None]:
    def change(message: service_pb2.ModelInferRequest) -> None:
        message.inputs[0].ClearField("contents")
        message.raw_input_contents.extend(parts)

    return change


def _shared_beside_raw(message: service_pb2.ModelInferRequest) -> None:
    _raw(b"1234")(message)
    message.inputs.add(name="y", datatype="FP32", shape=[1]).parameters["shared_memory_region"].string_param = "r"


BAD: list[tuple[str, Callable[[service_pb2.ModelInferRequest], object], grpc.StatusCode, str]] = [
    ("raw and typed", _mixed, grpc.StatusCode.INVALID_ARGUMENT, "contents field must not be specified"),
    ("two raw for one", _raw(b"1234", b"1234"), grpc.StatusCode.INVALID_ARGUMENT, "expected 1 raw_input_contents"),
    ("short raw", _raw(b"123"), grpc.StatusCode.INVALID_ARGUMENT, "FP32 [1] takes 4"),
    (
        "no contents",
        lambda m: m.inputs[0].ClearField("contents"),
        grpc.StatusCode.INVALID_ARGUMENT,
        "0 values in fp32_contents; FP32 [1] takes 1",
    ),
    (
        "another field",
        lambda m: m.inputs[0].contents.int_contents.append(1),
        grpc.StatusCode.INVALID_ARGUMENT,
        "has int_contents; expected fp32_contents",
    ),
    (
        "typed FP16",
        lambda m: setattr(m.inputs[0], "datatype", "FP16"),
        grpc.StatusCode.UNIMPLEMENTED,
        "FP16 has no typed field; send it in raw_input_contents",
    ),
    (
        "unknown datatype",
        lambda m: setattr(m.inputs[0], "datatype", "DT_FLOAT"),
        grpc.StatusCode.INVALID_ARGUMENT,
        "unknown datatype 'DT_FLOAT'",
    ),
    ("negative size", lambda m: m.inputs[0].shape.append(-1), grpc.StatusCode.INVALID_ARGUMENT, "whole numbers >= 0"),
    ("no model", lambda m: m.ClearField("model_name"), grpc.StatusCode.INVALID_ARGUMENT, "has no name specified"),
    ("unknown model", lambda m: setattr(m, "model_name", "nobody"), grpc.StatusCode.NOT_FOUND, "Latest(nobody)"),
    ("unknown version", lambda m: setattr(m, "model_version", "8"), grpc.StatusCode.NOT_FOUND, "Specific(half, 8)"),
    (
        "no version",
        lambda m: setattr(m, "model_version", "new"),
        grpc.StatusCode.INVALID_ARGUMENT,
        "version should be an integer > 0",
    ),
    (
        "unknown signature",
        lambda m: setattr(m.parameters["signature_name"], "string_param", "nope"),
        grpc.StatusCode.FAILED_PRECONDITION,
        'Serving signature key "nope" not found',
    ),
    (
        "empty parameter",
        lambda m: m.parameters["nothing"].SetInParent(),
        grpc.StatusCode.INVALID_ARGUMENT,
        "Parameter 'nothing' has no value",
    ),
    (
        "shared memory",
        lambda m: setattr(m.inputs[0].parameters["shared_memory_region"], "string_param", "r"),
        grpc.StatusCode.UNIMPLEMENTED,
        "Shared memory is not supported",
    ),
    (
        "shared memory beside raw",
        _shared_beside_raw,
        grpc.StatusCode.UNIMPLEMENTED,
        "Shared memory is not supported (input 'y')",
    ),
]


@pytest.mark.parametrize(("change", "code", "fragment"), [row[1:] for row in BAD], ids=[row[0] for row in BAD])
def test_bad_requests_cost_only_the_sender(
    stub: Any, change: Callable[[Any], object], code: grpc.StatusCode, fragment: str
) -> None:
    message = typed_request(2)
    change(message)
    with pytest.raises(grpc.RpcError) as caught:
        stub.ModelInfer(message, timeout=30)
    assert (caught.value.code(), fragment in str(caught.value.details())) == (code, True), str(caught.value.details())
    assert fp32(stub.ModelInfer(typed_request(2), timeout=30).raw_output_contents[0]) == [3.0]


def test_a_body_that_is_no_message_is_refused(half_channel: grpc.Channel) -> None:
    call = half_channel.unary_unary("/inference.GRPCInferenceService/ModelInfer", bytes, bytes)
    with pytest.raises(grpc.RpcError) as caught:
        call(b"\xff\xff\xff", timeout=30)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_statistics(client: triton.InferenceServerClient, stub: Any) -> None:
    stub.ModelInfer(typed_request(2, 3), timeout=30)
    (before,) = client.get_inference_statistics("half", "7").model_stats
    stub.ModelInfer(typed_request(2, 3), timeout=30)
    (after,) = client.get_inference_statistics("half").model_stats
    assert (after.name, after.version) == ("half", "7")
    assert after.inference_count - before.inference_count == 2
    assert after.execution_count - before.execution_count == 1
    executions = {batch.batch_size: batch.compute_infer for batch in after.batch_stats}
    earlier = {batch.batch_size: batch.compute_infer for batch in before.batch_stats}
    assert executions[2].count - earlier[2].count == 1
    assert sum(part.count for part in executions.values()) == after.execution_count
    # The difference: a request that failed after its execution has a part in the one sum and not in the other.
    spent = after.inference_stats.compute_infer.ns - before.inference_stats.compute_infer.ns
    assert executions[2].ns - earlier[2].ns == spent
    assert after.inference_stats.success.count - before.inference_stats.success.count == 1
    assert after.inference_stats.compute_infer.ns > before.inference_stats.compute_infer.ns
    with pytest.raises(InferenceServerException, match="Model 'nobody' is not loaded"):
        client.get_inference_statistics("nobody")


def test_repository_index(client: triton.InferenceServerClient) -> None:
    (entry,) = client.get_model_repository_index().models
    assert (entry.name, entry.version, entry.state, entry.reason) == ("half", "7", "READY", "")


def test_control_needs_explicit_mode(client: triton.InferenceServerClient) -> None:
    with pytest.raises(InferenceServerException, match="--model_control_mode=explicit"):
        client.unload_model("half")


def test_models_come_and_go_on_request(tmp_path: Path) -> None:
    publish_affine(tmp_path / "affine", slope=1.0, intercept=0.5)
    flags = ["--model_control_mode=explicit"]
    with (
        serve(tmp_path / "affine", model="affine", log_dir=tmp_path, flags=flags, wait=False) as server,
        triton.InferenceServerClient(server.grpc_address) as client,
    ):
        server.wait_until(lambda: server.get("/v2/health/live")[0] == 200, 60, "live")
        assert not client.is_model_ready("affine")
        client.load_model("affine")
        assert client.is_model_ready("affine")
        tensor = triton.InferInput("x", [1], "FP32")
        tensor.set_data_from_numpy(np.array([2], np.float32))
        assert client.infer("affine", [tensor]).as_numpy("y").tolist() == [2.5]
        client.unload_model("affine", unload_dependents=True)
        assert not client.is_model_ready("affine")
        (entry,) = client.get_model_repository_index().models
        assert (entry.version, entry.state, entry.reason) == ("1", "UNAVAILABLE", "unloaded")


def test_reflection_lists_the_service(half_channel: grpc.Channel) -> None:
    from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

    stub = reflection_pb2_grpc.ServerReflectionStub(half_channel)
    request = reflection_pb2.ServerReflectionRequest(list_services="")
    (answer,) = stub.ServerReflectionInfo(iter([request]), timeout=30)
    names = {item.name for item in answer.list_services_response.service}
    assert {"inference.GRPCInferenceService", "tensorflow.serving.PredictionService"} <= names
