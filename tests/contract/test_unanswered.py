"""A stop that does not wait for the end of requests: callers, the log and the access log say so."""

from __future__ import annotations

import json
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import psutil
import pytest

from modelyard.wire import PREDICTION_SERVICE, array_to_tensor, serving_pb2
from tests.support.models import publish_slow
from tests.support.server import TRANSPORT, RunningServer, serve

NATIVE = TRANSPORT != "python"
#: Where the core has learned it, it computes the first itself; Python does the second.
BODIES = (b'{"instances": [2.0]}', b'{"instances": [2.0], "unknown": 1}')


def call(server: RunningServer) -> tuple[str, str]:
    request = serving_pb2.PredictRequest()
    request.model_spec.name = "slow"
    request.inputs["x"].CopyFrom(array_to_tensor(np.array([2.0], np.float32)))
    with grpc.insecure_channel(server.grpc_address) as channel:
        predict = channel.unary_unary(PREDICTION_SERVICE["Predict"].path, bytes, bytes)
        try:
            predict(request.SerializeToString(), timeout=60)
        except grpc.RpcError as exc:
            return exc.code().name, str(exc.details())
    return "OK", ""


@pytest.mark.parametrize("learned", [False, True])
def test_requests_that_a_stop_cuts_off(tmp_path: Path, learned: bool) -> None:
    publish_slow(tmp_path / "slow", loops=8000)
    flags = ["--drain_seconds=1", "--access_log=all", "--access_log_format=json"]
    with (
        serve(tmp_path / "slow", model="slow", log_dir=tmp_path, flags=flags) as server,
        ThreadPoolExecutor(3) as pool,
    ):
        process = psutil.Process(server.process.pid)
        if learned:
            # The core learns what it may answer.
            assert server.post("/v1/models/slow:predict", BODIES[0])[0] == 200
        busy = process.cpu_times().user
        rest: list[Future[Any]] = [pool.submit(server.post, "/v1/models/slow:predict", body) for body in BODIES]
        calls = pool.submit(call, server)
        server.wait_until(lambda: process.cpu_times().user > busy + 0.5, 60, "computing")
        server.process.terminate()
        assert server.process.wait(timeout=30) == 0
        text = server.log_text()
        if NATIVE:
            assert [each.result()[0] for each in rest] == [503, 503]
            assert "--drain_seconds=1. Ask another server." in rest[0].result()[1]
            assert calls.result() == ("UNAVAILABLE", json.loads(rest[0].result()[1])["error"])
    if NATIVE:
        assert "3 requests were not answered within --drain_seconds=1" in text
    else:
        assert "2 requests were not answered within --drain_seconds=1" in text
        assert "1 request was not answered within --drain_seconds=1" in text
    lines = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    found = [line["status"] for line in lines if line["path"].endswith((":predict", "/Predict"))]
    assert sorted(found[-3:]) == ["503", "503", "UNAVAILABLE"]
