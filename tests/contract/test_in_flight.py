"""The gauge of requests in flight, read as Prometheus does, while they are."""

from __future__ import annotations

import http.client
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import numpy as np
import pytest
import tritonclient.grpc

from modelyard.wire import PREDICTION_SERVICE, array_to_tensor, serving_pb2
from tests.support.metrics import in_flight, monitoring_flag, until_in_flight
from tests.support.models import publish_slow
from tests.support.server import RunningServer, serve

_V1 = ("/v1/models/slow:predict", b'{"instances": [2.0]}')
_V2 = ("/v2/models/slow/infer", b'{"inputs": [{"name": "x", "shape": [1], "datatype": "FP32", "data": [2.0]}]}')


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """One worker: of several requests one is computed and the others wait."""
    folder = tmp_path_factory.mktemp("flight")
    publish_slow(folder / "slow", loops=2000)
    flags = [monitoring_flag(folder), "--tensorflow_session_parallelism=1"]
    with serve(folder / "slow", model="slow", log_dir=folder, flags=flags) as running:
        yield running


def body(values: np.ndarray) -> bytes:
    request = serving_pb2.PredictRequest()
    request.model_spec.name = "slow"
    request.inputs["x"].CopyFrom(array_to_tensor(values))
    return request.SerializeToString()


def over_grpc(server: RunningServer) -> None:
    with grpc.insecure_channel(server.grpc_address) as channel:
        channel.unary_unary(PREDICTION_SERVICE["Predict"].path, bytes, bytes)(
            body(np.array([2.0], np.float32)), timeout=60
        )


def over_oip_grpc(server: RunningServer) -> None:
    client = tritonclient.grpc.InferenceServerClient(server.grpc_address)
    inputs = tritonclient.grpc.InferInput("x", [1], "FP32")
    inputs.set_data_from_numpy(np.array([2.0], np.float32))
    client.infer("slow", [inputs])
    client.close()


def over_rest(server: RunningServer) -> None:
    assert server.post(*_V1)[0] == 200


def over_oip_rest(server: RunningServer) -> None:
    assert server.post(*_V2)[0] == 200


@pytest.mark.parametrize("call", [over_grpc, over_oip_grpc, over_rest, over_oip_rest])
def test_a_request_is_in_flight_until_it_is_answered(
    server: RunningServer, call: Callable[[RunningServer], None]
) -> None:
    until_in_flight(server, 0)
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(call, server)
        until_in_flight(server, 1)
        assert not answer.done()
        answer.result(60)
    # Its answer is sent after it was counted off.
    assert in_flight(server) == 0


def test_those_that_wait_are_counted_and_cancelled_ones_are_not_for_long(server: RunningServer) -> None:
    until_in_flight(server, 0)
    connections = [http.client.HTTPConnection("127.0.0.1", server.rest_port) for _ in range(2)]
    with grpc.insecure_channel(server.grpc_address) as channel:
        predict = channel.unary_unary(PREDICTION_SERVICE["Predict"].path, bytes, bytes)
        calls = [predict.future(body(np.array([2.0], np.float32)), timeout=60) for _ in range(2)]
        for connection in connections:
            connection.request("POST", *_V1)
        until_in_flight(server, 4)
        for call in calls:
            assert call.cancel()
        for connection in connections:
            connection.close()
        # What was being computed is finished, what waited is not begun.
        until_in_flight(server, 0)


def test_failed_and_refused_requests_are_not_in_flight(server: RunningServer) -> None:
    until_in_flight(server, 0)
    assert server.post("/v1/models/slow:predict", b'{"instances": ["text"]}')[0] == 400
    assert server.post("/v1/models/slow:predict", b'{"instances": [[1.0, 2.0]]}')[0] == 400
    assert server.post("/v1/models/slow:predict", b"{")[0] == 400
    assert server.post("/v1/models/absent:predict", b'{"instances": [1.0]}')[0] == 404
    assert server.post("/v2/models/slow/infer", b'{"inputs": []}')[0] == 400
    with grpc.insecure_channel(server.grpc_address) as channel:
        predict = channel.unary_unary(PREDICTION_SERVICE["Predict"].path, bytes, bytes)
        with pytest.raises(grpc.RpcError, match="INVALID_ARGUMENT"):
            predict(body(np.array([b"text"])), timeout=60)
        # Its time is up while it is computed or waits.
        with pytest.raises(grpc.RpcError, match="DEADLINE_EXCEEDED"):
            predict(body(np.array([2.0], np.float32)), timeout=0.1)
    until_in_flight(server, 0)
