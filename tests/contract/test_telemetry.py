"""Each request is recorded exactly once, over every API: in the access log, the slow-request log and as spans."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http

from modelyard.wire import PREDICTION_SERVICE, array_to_tensor, serving_pb2
from tests.contract.test_headers import ask
from tests.support.collector import Collector, collecting
from tests.support.models import publish_affine
from tests.support.server import RunningServer, serve
from tests.support.waiting import until

PREDICT = PREDICTION_SERVICE["Predict"].path
V2 = json.dumps({"inputs": [{"name": "x", "shape": [2], "datatype": "FP32", "data": [1, 2]}]}).encode()
TRACE, PARENT = "ab" * 16, "cd" * 8


@dataclass(frozen=True, kw_only=True)
class Recorded:
    server: RunningServer
    collector: Collector
    socket: Path

    def lines(self, name: str, count: int = 1, logger: str | None = None) -> list[dict[str, Any]]:
        """The log's lines about requests whose ids begin so, once there are so many: there must be no more."""

        def found() -> list[dict[str, Any]]:
            return [
                line
                for line in self.server.log_objects()
                if line.get("request_id", "").startswith(name) and line.get("logger") == logger
            ]

        until(lambda: len(found()) >= count, 30, found)
        assert len(found()) == count
        return found()


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Recorded]:
    folder = tmp_path_factory.mktemp("telemetry")
    publish_affine(folder / "affine", slope=1.0, intercept=0.0)
    flags = [
        f"--grpc_socket_path={folder / 'socket'}", "--access_log=all", "--access_log_format=json", "--log_format=json",
        "--slow_request_ms=0.001",
    ]  # fmt: skip
    with collecting() as collector:
        env = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url, "OTEL_BSP_SCHEDULE_DELAY": "100"}
        with serve(folder / "affine", model="affine", log_dir=folder, flags=flags, env=env) as server:
            yield Recorded(server=server, collector=collector, socket=folder / "socket")


def call(address: str, path: str, message: Any, name: str, *metadata: tuple[str, str]) -> str:
    """The status that a gRPC call ends with."""
    with grpc.insecure_channel(address) as channel:
        method = channel.unary_unary(path, bytes, bytes)
        try:
            method(message.SerializeToString(), timeout=30, metadata=(("x-request-id", name), *metadata))
        except grpc.RpcError as exc:
            return str(exc.code().name)
    return "OK"


def predict_request(model: str) -> serving_pb2.PredictRequest:
    request = serving_pb2.PredictRequest()
    request.model_spec.name = model
    request.inputs["x"].CopyFrom(array_to_tensor(np.array([2.0, 3.0], np.float32)))
    return request


def metadata_request() -> serving_pb2.GetModelMetadataRequest:
    request = serving_pb2.GetModelMetadataRequest(metadata_field=["signature_def"])
    request.model_spec.name = "affine"
    return request


#: Whether it is computed; the path, what is sent, the status, and the model in the log.
REST: list[tuple[bool, str, str, bytes | None, str, str]] = [
    (True, "POST", "/v1/models/affine:predict", b'{"instances": [1, 2]}', "200", "affine"),
    (True, "POST", "/v2/models/affine/infer", V2, "200", "affine"),
    # A key in an unusual place is Python's.
    (True, "POST", "/v1/models/affine:predict", b'{"instances": [1, 2], "more": 1}', "200", "affine"),
    (False, "POST", "/v1/models/affine:predict", b"nonsense", "400", "affine"),
    (False, "GET", "/v1/models/affine", None, "200", "affine"),
    (False, "GET", "/v1/models/nobody?token=secret", None, "404", "nobody"),
    (False, "GET", "/v2/models/affine/config", None, "200", "affine"),
    (False, "GET", "/v2/health/ready", None, "200", ""),
    (False, "GET", "/elsewhere", None, "404", ""),
]


@pytest.mark.parametrize("number", range(len(REST)))
def test_rest_requests_have_one_line_each(recorded: Recorded, number: int) -> None:
    computed, method, path, body, status, model = REST[number]
    name = f"rest-{number}"
    assert ask(recorded.server, method, path, body, {"x-request-id": name})[0] == int(status)
    (line,) = recorded.lines(name)
    assert (line["api"], line["method"], line["path"], line["status"]) == (
        "rest",
        method,
        path.partition("?")[0],
        status,
    )
    assert (line.get("model", ""), line["client"]) == (model, "127.0.0.1")
    assert line.get("bytes_in", 0) == len(body or b"")
    check_times(line, computed=computed)


def check_times(line: dict[str, Any], *, computed: bool) -> None:
    assert line["total_ms"] > 0
    assert ("batch_ms" in line) is computed
    if computed:
        assert (line["version"], line["signature"], line["backend"]) == (1, "serving_default", "onnxruntime")
        assert (line["rows"], line["batch_requests"]) == (2, 1)
        parts = sum(line.get(part, 0.0) for part in ("receive_ms", "queue_ms", "batch_ms", "write_ms"))
        assert parts == pytest.approx(line["total_ms"], abs=0.1)
        assert 0 < line["compute_ms"] <= line["batch_ms"]


@pytest.mark.parametrize("endpoint", ["port", "socket"])
def test_grpc_calls_have_one_line_each(recorded: Recorded, endpoint: str) -> None:
    address = recorded.server.grpc_address if endpoint == "port" else f"unix:{recorded.socket}"
    calls = [
        ("ok", PREDICT, predict_request("affine"), "OK", "affine", True),
        ("unknown-model", PREDICT, predict_request("nobody"), "NOT_FOUND", "nobody", False),
        ("python", PREDICTION_SERVICE["GetModelMetadata"].path, metadata_request(), "OK", "affine", False),
        ("unknown-method", "/a.B/C", predict_request("affine"), "UNIMPLEMENTED", "", False),
    ]
    for kind, path, request, status, model, computed in calls:
        name = f"{endpoint}-{kind}"
        assert call(address, path, request, name) == status
        (line,) = recorded.lines(name)
        assert (line["api"], line["path"], line["status"], line.get("model", "")) == ("grpc", path, status, model)
        assert line["client"] == ("127.0.0.1" if endpoint == "port" else "unix")
        check_times(line, computed=computed)


def test_a_stream_is_one_request(recorded: Recorded) -> None:
    answers: list[Any] = []
    with tritonclient.grpc.InferenceServerClient(recorded.server.grpc_address) as client:
        client.start_stream(lambda result, error: answers.append((result, error)), headers={"x-request-id": "stream"})
        value = tritonclient.grpc.InferInput("x", [2], "FP32")
        value.set_data_from_numpy(np.array([1.0, 2.0], np.float32))
        for _ in range(3):
            client.async_stream_infer("affine", [value])
        client.stop_stream()
    assert [error for _, error in answers] == [None] * 3
    (line,) = recorded.lines("stream")
    assert (line["path"], line["status"], line["model"]) == (
        "/inference.GRPCInferenceService/ModelStreamInfer", "OK", "affine",
    )  # fmt: skip


def test_many_at_once_are_all_there_once(recorded: Recorded) -> None:
    def one(number: int) -> int:
        return ask(recorded.server, "POST", "/v1/models/affine:predict", b'{"instances": [1]}', {
            "x-request-id": f"many-{number}"})[0]  # fmt: skip

    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(one, range(200))) == {200}
    counts = Counter(line["request_id"] for line in recorded.lines("many-", 200))
    assert set(counts.values()) == {1}
    assert "request_records_dropped{} 0" in recorded.server.get("/metrics")[1]


def test_what_callers_choose_cannot_make_lines(recorded: Recorded) -> None:
    ask(recorded.server, "GET", '/v1/models/a%0a{"request_id":"forged"}', None, {"x-request-id": "forger"})
    assert recorded.lines("forger")[0]["status"] == "400"
    assert recorded.lines("forged", 0) == []


def test_the_slow_log_has_the_times(recorded: Recorded) -> None:
    ask(recorded.server, "POST", "/v1/models/affine:predict", b'{"instances": [1, 2]}', {"x-request-id": "slow"})
    (line,) = recorded.lines("slow", logger="modelyard.serving.slow")
    assert (line["level"], line["message"], line["status"]) == ("warning", "slow request", "200")
    check_times(line, computed=True)


def named(*names: str, trace: str = TRACE) -> Callable[[str, Any], bool]:
    return lambda _, span: span.trace_id.hex() == trace and span.name in names


@pytest.mark.parametrize("endpoint", ["rest", "grpc", "socket"])
def test_spans_continue_the_caller_s_trace(recorded: Recorded, endpoint: str) -> None:
    trace = f"{['rest', 'grpc', 'socket'].index(endpoint) + 1:032x}"
    header = ("traceparent", f"00-{trace}-{PARENT}-01")
    if endpoint == "rest":
        ask(recorded.server, "POST", "/v1/models/affine:predict", b'{"instances": [1, 2]}', dict([header]))
        name = "POST /v1/models/{model}:predict"
    else:
        address = recorded.server.grpc_address if endpoint == "grpc" else f"unix:{recorded.socket}"
        call(address, PREDICT, predict_request("affine"), f"traced-{endpoint}", header)
        name = PREDICT.lstrip("/")
    (request,) = recorded.collector.spans(named(name, trace=trace), 1)
    assert request.parent_span_id.hex() == PARENT
    parts = ("receive", "queue", "batch", "compute", "write")
    children = {span.name: span for span in recorded.collector.spans(named(*parts, trace=trace), len(parts))}
    assert {span.parent_span_id for span in children.values()} == {request.span_id}
    ends = [request.start_time_unix_nano]
    for part in ("receive", "queue", "batch", "write"):
        assert children[part].start_time_unix_nano == ends[-1]
        ends.append(children[part].end_time_unix_nano)
    assert ends[-1] == request.end_time_unix_nano
    assert [link.span_id for link in children["batch"].links] == [request.span_id]
    assert [link.span_id for link in children["compute"].links] == [children["batch"].span_id]
    values = {each.key: each.value for each in request.attributes}
    assert (values["modelyard.model"].string_value, values["modelyard.rows"].int_value) == ("affine", 2)


def test_a_batch_s_span_is_linked_to_its_requests(recorded: Recorded) -> None:
    """Some of very many requests share a batch."""
    headers = {"traceparent": f"00-{'e' * 32}-{PARENT}-01"}

    def one(_: int) -> None:
        ask(recorded.server, "POST", "/v1/models/affine:predict", b'{"instances": [1]}', headers)

    def shared_batches() -> list[Any]:
        with ThreadPoolExecutor(16) as pool:
            list(pool.map(one, range(100)))
        batches = recorded.collector.spans(named("batch", trace="e" * 32), 1)
        return [batch for batch in batches if len(batch.links) > 1]

    shared = until(shared_batches, 60)
    requests = {span.span_id for span in recorded.collector.spans(
        lambda _, span: span.trace_id.hex() == "e" * 32 and span.kind == 2, len(shared[0].links))}  # fmt: skip
    assert {link.span_id for link in shared[0].links} <= requests


def test_a_caller_that_does_not_trace_is_not_traced(recorded: Recorded) -> None:
    ask(recorded.server, "GET", "/v1/models/affine", None, {"traceparent": f"00-{'1' * 32}-{PARENT}-00"})
    ask(recorded.server, "GET", "/v1/models/affine", None, {"traceparent": f"00-{'2' * 32}-{PARENT}-01"})
    name = "GET /v1/models/{model}"
    recorded.collector.spans(named(name, trace="2" * 32), 1)
    assert recorded.collector.spans(named(name, trace="1" * 32), 0) == []


def test_the_log_s_level_changes_while_it_runs(recorded: Recorded) -> None:
    with tritonclient.http.InferenceServerClient(recorded.server.rest_url.removeprefix("http://")) as client:
        before = client.get_log_settings()
        assert (before["log_info"], before["log_verbose_level"]) == (True, 0)
        assert client.update_log_settings({"log_info": False})["log_warning"] is True
    with tritonclient.grpc.InferenceServerClient(recorded.server.grpc_address) as client:
        assert client.get_log_settings(as_json=True)["settings"]["log_info"] == {"bool_param": False}
        changed = client.update_log_settings({"log_verbose_level": 1}, as_json=True)["settings"]
        assert (changed["log_info"], changed["log_verbose_level"]) == ({"bool_param": True}, {"uint32_param": 1})
        client.update_log_settings({"log_verbose_level": 0})
    for body, status in (
        ({"log_info": True, "log_warning": False}, 400),
        ({"log_info": 1}, 400),
        ({"log_verbose_level": -1}, 400),
        ({"log_file": "/tmp/other"}, 501),
        ({"more": True}, 501),
    ):
        assert recorded.server.post("/v2/logging", json.dumps(body).encode())[0] == status
    assert json.loads(recorded.server.get("/v2/logging")[1]) == before


def test_sampling_takes_a_share(tmp_path: Path) -> None:
    publish_affine(tmp_path / "affine", slope=1.0, intercept=0.0)
    with serve(tmp_path / "affine", model="affine", log_dir=tmp_path, flags=["--access_log=sampled:0.2"]) as server:
        for _ in range(300):
            ask(server, "GET", "/v2/health/live")
    lines = [line for line in server.log_text().splitlines() if "path=/v2/health/live" in line]
    # Six standard deviations of a binomial distribution around 60.
    assert 18 < len(lines) < 102
