"""A batch that does not end: its requests are answered, its model is marked, and the others go on as before."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from modelyard.wire import PREDICTION_SERVICE, array_to_tensor, serving_pb2
from tests.support.latency import latencies
from tests.support.metrics import monitoring_flag, scrape, until_in_flight, value
from tests.support.models import publish_affine, publish_rounds
from tests.support.server import RunningServer, serve

LIMIT_S = 1.0
GAUGE = ":modelyard:serving:hanging_batches"
WHY = f"Version 1 has been computing a batch for more than {LIMIT_S:g} s (--max_batch_seconds)"


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hanging")
    publish_rounds(folder / "rounds")
    publish_affine(folder / "fast", slope=2.0, intercept=1.0)
    return folder


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, repository: Path) -> Iterator[RunningServer]:
    with started(tmp_path_factory.mktemp("server"), repository) as running:
        yield running


@contextmanager
def started(folder: Path, repository: Path) -> Iterator[RunningServer]:
    """A server with a runtime whose calls cannot be ended from outside."""
    flags = [f"--model_repository={repository}", "--runtime=openvino", f"--max_batch_seconds={LIMIT_S}"]
    with serve(None, model="rounds", log_dir=folder, flags=[*flags, monitoring_flag(folder)]) as running:
        running.wait_until(lambda: '"AVAILABLE"' in running.get("/v1/models/fast")[1], 30, "the fast model")
        yield running


def rest(server: RunningServer, rounds: float) -> tuple[int, str]:
    return server.post("/v1/models/rounds:predict", json.dumps({"instances": [rounds]}).encode())


def over_grpc(server: RunningServer, rounds: float) -> tuple[str, str]:
    request = serving_pb2.PredictRequest()
    request.model_spec.name = "rounds"
    request.inputs["x"].CopyFrom(array_to_tensor(np.array([rounds], np.float32)))
    with grpc.insecure_channel(server.grpc_address) as channel:
        try:
            channel.unary_unary(PREDICTION_SERVICE["Predict"].path, bytes, bytes)(
                request.SerializeToString(), timeout=60
            )
        except grpc.RpcError as exc:
            return exc.code().name, exc.details() or ""
    return "OK", ""


@pytest.fixture(scope="module")
def second(server: RunningServer) -> float:
    """Rounds that take a second here; the model is known to be fast for few of them."""
    assert [rest(server, 3.0)[0] for _ in range(5)] == [200] * 5

    def seconds(rounds: float) -> float:
        started = time.perf_counter()
        assert rest(server, rounds)[0] == 200
        return time.perf_counter() - started

    tried, took = 50_000.0, 0.0
    while took < 0.05:
        tried *= 2
        # The fastest: on a busy machine one alone would be taken for slow, and what follows for long.
        took = min(seconds(tried) for _ in range(5))
    return tried / took


@pytest.fixture(autouse=True)
def answering(server: RunningServer) -> None:
    """What one test leaves behind is no other's."""
    server.wait_until(lambda: state(server)[0] == "AVAILABLE", 60, "back")


def quick(server: RunningServer) -> None:
    """Makes the core expect short batches, which it computes on its transport's threads."""
    assert [rest(server, 3.0)[0] for _ in range(60)] == [200] * 60


def fast_p99(server: RunningServer) -> float:
    """Seconds of requests to the other model."""
    return float(np.quantile(latencies(server, 100), 0.99))


def health(server: RunningServer, service: str) -> str:
    with grpc.insecure_channel(server.grpc_address) as channel:
        answer = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(service=service), timeout=30)
    return health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)


def state(server: RunningServer) -> tuple[str, str]:
    (row,) = json.loads(server.get("/v1/models/rounds")[1])["model_version_status"]
    return row["state"], row["status"].get("error_message", "")


def test_a_batch_that_hangs_is_answered_marked_and_left_alone(server: RunningServer, second: float) -> None:
    quick(server)
    alone = fast_p99(server)
    with ThreadPoolExecutor(2) as pool:
        started = time.perf_counter()
        hanging: Future[tuple[int, str]] = pool.submit(rest, server, 3 * second)
        answer = hanging.result()
        seconds = time.perf_counter() - started
        assert (answer[0], WHY in answer[1]) == (504, True)
        assert LIMIT_S <= seconds < LIMIT_S + 2.0
        # Nobody waits for a version that hangs; and another server may answer this.
        assert (rest(server, 3.0)[0], over_grpc(server, 3.0)[0]) == (503, "UNAVAILABLE")
        assert (state(server)[0], WHY in state(server)[1]) == ("END", True)
        assert value(scrape(server), GAUGE, model="rounds", version="1") == 1
        # It was let in.
        assert ':modelyard:serving:refused{model="rounds"' not in server.get("/metrics")[1]
        server.wait_until(lambda: health(server, "rounds") == "NOT_SERVING", 5, "unhealthy")
        assert (health(server, "fast"), server.get("/v2/health/ready")[0]) == ("SERVING", 200)
        assert server.get("/v2/models/rounds/ready")[0] != 200
        beside = fast_p99(server)
    # A core less, and nothing that waits for the other model.
    assert beside < 5 * alone + 0.05, (alone, beside)
    assert f"model rounds: {WHY[0].lower()}{WHY[1:]}" in server.log_text()
    server.wait_until(lambda: state(server)[0] == "AVAILABLE", 60, "back")
    server.wait_until(lambda: health(server, "rounds") == "SERVING", 5, "healthy")
    assert (rest(server, 3.0)[0], over_grpc(server, 3.0)[0]) == (200, "OK")
    assert value(scrape(server), GAUGE, model="rounds", version="1") == 0


def test_as_many_as_there_are_threads_over_grpc(server: RunningServer, second: float) -> None:
    """The others are answered though every thread that may compute this model does."""
    quick(server)
    with ThreadPoolExecutor(4) as pool:
        hanging = [pool.submit(over_grpc, server, 2 * second) for _ in range(4)]
        beside = fast_p99(server)
        answers = [each.result() for each in hanging]
    assert {code for code, _ in answers} <= {"DEADLINE_EXCEEDED", "UNAVAILABLE"}
    assert answers[0][1].startswith(WHY)
    assert beside < LIMIT_S / 2
    server.wait_until(lambda: state(server)[0] == "AVAILABLE", 60, "back")
    assert over_grpc(server, 3.0)[0] == "OK"


def test_a_call_over_examples_that_hangs_is_answered(server: RunningServer, second: float) -> None:
    """No batch queue knows of it: it is answered by the thread that waits for it, over REST and gRPC."""
    body = json.dumps({"signature_name": "regress", "examples": [{"x": 3 * second}]}).encode()
    request = serving_pb2.RegressionRequest()
    request.model_spec.name, request.model_spec.signature_name = "rounds", "regress"
    example = request.input.example_list.examples.add()
    example.features.feature["x"].float_list.value.append(3 * second)
    with ThreadPoolExecutor(1) as pool, grpc.insecure_channel(server.grpc_address) as channel:
        started = time.perf_counter()
        hanging = pool.submit(server.post, "/v1/models/rounds:regress", body)
        with pytest.raises(grpc.RpcError) as caught:
            channel.unary_unary(PREDICTION_SERVICE["Regress"].path, bytes, bytes)(
                request.SerializeToString(), timeout=60
            )
        answer = hanging.result()
        seconds = time.perf_counter() - started
    assert (answer[0], WHY in answer[1]) == (504, True)
    assert (caught.value.code().name, WHY in str(caught.value.details())) == ("DEADLINE_EXCEEDED", True)
    assert LIMIT_S <= seconds < LIMIT_S + 1.5
    server.wait_until(lambda: state(server)[0] == "AVAILABLE", 60, "back")
    quick = json.dumps({"signature_name": "regress", "examples": [{"x": 3.0}]}).encode()
    assert server.post("/v1/models/rounds:regress", quick)[0] == 200


def test_a_process_that_stood_still_has_computed_nothing(server: RunningServer, second: float) -> None:
    marked = server.log_text().count(WHY[1:])
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(rest, server, 0.1 * second)
        until_in_flight(server, 1)
        os.kill(server.process.pid, signal.SIGSTOP)
        time.sleep(2 * LIMIT_S)
        os.kill(server.process.pid, signal.SIGCONT)
        assert answer.result()[0] == 200
    assert server.log_text().count(WHY[1:]) == marked


def test_onnxruntime_is_told_to_end_the_call(tmp_path: Path, repository: Path) -> None:
    flags = [f"--model_repository={repository}", f"--max_batch_seconds={LIMIT_S}"]
    with serve(None, model="rounds", log_dir=tmp_path, flags=flags) as running, ThreadPoolExecutor(2) as pool:
        # Rounds for years.
        over_rest, other = pool.submit(rest, running, 1e15), pool.submit(over_grpc, running, 1e15)
        (status, body), (code, details) = over_rest.result(), other.result()
        assert {status, code} <= {503, 504, "UNAVAILABLE", "DEADLINE_EXCEEDED"}
        assert (WHY in body, WHY in details) == (True, True)
        running.wait_until(lambda: state(running)[0] == "AVAILABLE", 5, "back")
        assert (rest(running, 3.0)[0], over_grpc(running, 3.0)[0]) == (200, "OK")


def test_the_server_ends_though_a_batch_does_not(tmp_path: Path, repository: Path, second: float) -> None:
    # One of its own: the other tests need theirs.
    with started(tmp_path, repository) as server, ThreadPoolExecutor(1) as pool:
        hanging = pool.submit(rest, server, 120 * second)
        assert hanging.result()[0] == 504
        began = time.perf_counter()
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(timeout=30) == 0
        assert time.perf_counter() - began < 8
        assert "stopped, though a thread has not ended" in server.log_text()
