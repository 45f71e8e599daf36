"""Overload: what would wait too long is refused at once; who hangs up costs nothing."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import psutil
import pytest
from google.rpc import error_details_pb2  # type: ignore[import-untyped]
from grpc_status import rpc_status

from modelyard.clients import ClientOptions, RetryOptions, connect
from modelyard.errors import OverloadedError
from modelyard.wire import PREDICTION_SERVICE, array_to_tensor, serving_pb2
from tests.support.metrics import monitoring_flag, until_in_flight
from tests.support.models import publish_affine, publish_slow
from tests.support.server import RunningServer, serve
from tests.support.waiting import until


def by_rest(server: RunningServer) -> tuple[int, str | None, str, float]:
    connection = http.client.HTTPConnection("127.0.0.1", server.rest_port, timeout=60)
    started = time.monotonic()
    connection.request("POST", "/v1/models/slow:predict", b'{"instances": [2.0]}')
    response = connection.getresponse()
    body = json.loads(response.read())
    connection.close()
    return response.status, response.getheader("retry-after"), body.get("error", ""), time.monotonic() - started


def test_what_would_wait_too_long_is_refused(tmp_path: Path) -> None:
    publish_slow(tmp_path / "slow", loops=400)
    flags = ["--max_queue_delay_ms=1500", "--tensorflow_session_parallelism=1"]
    with (
        serve(tmp_path / "slow", model="slow", log_dir=tmp_path, flags=flags) as server,
        ThreadPoolExecutor(120) as pool,
        grpc.insecure_channel(server.grpc_address) as channel,
    ):
        assert [by_rest(server)[0] for _ in range(3)] == [200] * 3
        waits = [pool.submit(by_rest, server) for _ in range(120)]
        until(lambda: any(wait.done() and wait.result()[0] == 429 for wait in waits))
        request = serving_pb2.PredictRequest()
        request.model_spec.name = "slow"
        request.inputs["x"].CopyFrom(array_to_tensor(np.zeros(1, np.float32)))
        predict = channel.unary_unary(PREDICTION_SERVICE["Predict"].path, bytes, bytes)
        codes = set()
        for _ in range(5):
            try:
                predict(request.SerializeToString(), timeout=60)
            except grpc.RpcError as exc:
                codes.add(exc.code())
        answers = [wait.result() for wait in waits]
        refused = [answer for answer in answers if answer[0] == 429]
        assert {answer[0] for answer in answers} == {200, 429}
        assert all(1 <= int(after or 0) <= 10 and "overloaded" in error for _, after, error, _ in refused)
        assert codes <= {grpc.StatusCode.RESOURCE_EXHAUSTED}
        # When the rush is over, requests are admitted again.
        assert by_rest(server)[0] == 200


def test_refusals_say_when_to_come_back(tmp_path: Path) -> None:
    publish_slow(tmp_path / "slow", loops=200)
    # One computes, and no other request may wait so long.
    flags = ["--max_queue_delay_ms=50", "--tensorflow_session_parallelism=1"]
    once = ClientOptions(retry=RetryOptions(attempts=1))
    inputs = {"x": np.zeros(1, np.float32)}
    over = threading.Event()

    def rush() -> None:
        while not over.is_set():
            if by_rest(server)[0] == 429:
                time.sleep(0.01)

    def refusal(call: Callable[[], object], kind: type[Exception]) -> Any:
        for _ in range(200):
            try:
                call()
            except kind as exc:
                return exc
        raise AssertionError("the server is not overloaded")

    with serve(tmp_path / "slow", model="slow", log_dir=tmp_path, flags=flags) as server, ThreadPoolExecutor(8) as pool:
        assert [by_rest(server)[0] for _ in range(3)] == [200] * 3
        urls = [f"grpc://{server.grpc_address}", server.rest_url]
        rushing = [pool.submit(rush) for _ in range(8)]
        try:
            own, library = once, replace(once, transport="library")
            for url, options in [(urls[0], own), (urls[0], library), (urls[1], own)]:
                with connect(url, options) as client:
                    error = refusal(partial(client.predict, "slow", inputs), OverloadedError)
                # gRPC says it in milliseconds, HTTP in whole seconds.
                assert 0.05 <= error.retry_after_s <= 10
                assert url != urls[1] or error.retry_after_s in range(1, 11)
            with grpc.insecure_channel(server.grpc_address) as channel:
                request = serving_pb2.PredictRequest()
                request.model_spec.name = "slow"
                request.inputs["x"].CopyFrom(array_to_tensor(inputs["x"]))
                predict = channel.unary_unary(PREDICTION_SERVICE["Predict"].path, bytes, bytes)
                error = refusal(lambda: predict(request.SerializeToString(), timeout=60), grpc.RpcError)
        finally:
            over.set()
        page = server.get("/metrics")[1]
        for series in (
            ':modelyard:serving:refused{model="slow",reason="too_late"}',
            ':tensorflow:serving:request_count{model_name="slow",status="RESOURCE_EXHAUSTED"}',
        ):
            (count,) = [line.rpartition(" ")[2] for line in page.splitlines() if line.startswith(series)]
            assert int(count) >= 4
        status = rpc_status.from_call(error)
        assert (status.code, status.message) == (8, error.details())
        (detail,), info = status.details, error_details_pb2.RetryInfo()
        assert detail.Unpack(info)
        pushback = int(dict(error.trailing_metadata())["grpc-retry-pushback-ms"])
        assert info.retry_delay.ToMilliseconds() == pushback >= 50
        for task in rushing:
            task.result()
        # A caller that comes back when it was told to is admitted.
        with connect(urls[0]) as client:
            assert client.predict("slow", inputs)["y"].tolist() == [0.0]


def test_callers_that_hang_up_cost_nothing(tmp_path: Path) -> None:
    publish_slow(tmp_path / "slow", loops=1500)
    flags = ["--tensorflow_session_parallelism=1", monitoring_flag(tmp_path)]
    with serve(tmp_path / "slow", model="slow", log_dir=tmp_path, flags=flags) as server:
        process = psutil.Process(server.process.pid)
        busy = process.cpu_times().user
        by_rest(server)
        once = process.cpu_times().user - busy
        first = threading.Thread(target=by_rest, args=(server,))
        first.start()
        until_in_flight(server, 1)
        request = serving_pb2.PredictRequest()
        request.model_spec.name = "slow"
        request.inputs["x"].CopyFrom(array_to_tensor(np.zeros(1, np.float32)))
        with grpc.insecure_channel(server.grpc_address) as channel:
            predict = channel.unary_unary(PREDICTION_SERVICE["Predict"].path, bytes, bytes)
            calls = [predict.future(request.SerializeToString(), timeout=60) for _ in range(4)]
            connections = []
            for _ in range(4):
                connection = http.client.HTTPConnection("127.0.0.1", server.rest_port)
                connection.request("POST", "/v1/models/slow:predict", b'{"instances": [2.0]}')
                connections.append(connection)
            until_in_flight(server, 9)
            for connection in connections:
                connection.close()
            for call in calls:
                assert call.cancel()
        first.join()
        assert by_rest(server)[0] == 200
        # Three predictions were wanted and computed, eight were not.
        assert process.cpu_times().user - busy < 5 * once + 0.5


@pytest.mark.parametrize("transport", ["native", "python"])
def test_large_bodies_of_version_2_wait_among_their_models_requests(tmp_path: Path, transport: str) -> None:
    publish_affine(tmp_path / "affine", slope=2.0, intercept=0.0)
    values = [1.5] * 300_000
    body = json.dumps({"inputs": [{"name": "x", "shape": [len(values)], "datatype": "FP32", "data": values}]}).encode()
    flags = ["--max_queued_requests=1", "--tensorflow_session_parallelism=1", f"--transport={transport}"]
    with (
        serve(tmp_path / "affine", model="affine", log_dir=tmp_path, flags=flags) as server,
        ThreadPoolExecutor(12) as pool,
    ):
        codes = list(pool.map(lambda _: server.post("/v2/models/affine/infer", body)[0], range(24)))
        lines = [line.rpartition(" ") for line in server.get("/metrics")[1].splitlines() if ":refused{" in line]
    found = {series: int(count) for series, _, count in lines if int(count)}
    assert set(codes) == {200, 429}
    assert found == {':modelyard:serving:refused{model="affine",reason="queue_full"}': codes.count(429)}
