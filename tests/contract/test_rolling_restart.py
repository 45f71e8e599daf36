"""Two servers restarted one after the other under load: no request fails, of our clients or of plain ones."""

from __future__ import annotations

import collections
import contextlib
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import httpx
import numpy as np
import pytest

from modelyard.clients import ClientOptions, RetryOptions, connect
from modelyard.wire import PREDICTION_SERVICE, array_to_tensor, serving_pb2
from tests.support.models import publish_affine
from tests.support.server import TRANSPORT, RunningServer, serve
from tests.support.waiting import until

Results = collections.Counter[str]
BODY = b'{"instances": [2.0]}'
#: Longer than the chooser takes to see that a server is not ready.
DELAY_S, LOOK_S = 0.5, 0.05
TRANSPORTS = [TRANSPORT] if TRANSPORT else ["native", "python"]


class Chooser:
    """As a load balancer: sends new requests where the last look found a server ready."""

    def __init__(self, servers: list[RunningServer]) -> None:
        self._servers = servers
        self.ready = list(servers)

    def watch(self, over: threading.Event) -> None:
        while not over.wait(LOOK_S):
            self.ready = [server for server in self._servers if is_ready(server)]

    def choose(self) -> RunningServer:
        return self.ready[0]


def is_ready(server: RunningServer) -> bool:
    with contextlib.suppress(OSError):
        return server.get("/v2/health/ready")[0] == 200
    return False


def plain_rest(chooser: Chooser, over: threading.Event, results: Results) -> None:
    """httpx keeps connections alive where the server lets it, and repeats nothing."""
    with httpx.Client(timeout=30, trust_env=False) as client:
        while not over.is_set():
            try:
                response = client.post(f"{chooser.choose().rest_url}/v1/models/affine:predict", content=BODY)
                results["answered" if (response.status_code, "4.0" in response.text) == (200, True) else "wrong"] += 1
            except httpx.HTTPError as exc:
                results[f"plain REST: {exc!r}"] += 1


def plain_grpc(chooser: Chooser, over: threading.Event, results: Results) -> None:
    """gRPC's own channels, without its repetitions."""
    request = serving_pb2.PredictRequest()
    request.model_spec.name = "affine"
    request.inputs["x"].CopyFrom(array_to_tensor(np.array([2.0], np.float32)))
    channels: dict[int, grpc.Channel] = {}
    options = [("grpc.enable_retries", 0), ("grpc.initial_reconnect_backoff_ms", 50)]
    while not over.is_set():
        port = chooser.choose().grpc_port
        channel = channels.setdefault(port, grpc.insecure_channel(f"127.0.0.1:{port}", options))
        try:
            channel.unary_unary(PREDICTION_SERVICE["Predict"].path, bytes, bytes)(
                request.SerializeToString(), timeout=30, wait_for_ready=True
            )
            results["answered"] += 1
        except grpc.RpcError as exc:
            results[f"plain gRPC: {exc.code()} {exc.details()}"] += 1
    for channel in channels.values():
        channel.close()


def ours(urls: list[str], over: threading.Event, results: Results) -> None:
    options = ClientOptions(timeout_s=30.0, retry=RetryOptions(attempts=5, budget=200))
    with connect(urls, options) as client:
        while not over.is_set():
            try:
                answer = client.predict("affine", {"x": np.array([2.0], np.float32)})
                results["answered" if answer["y"].tolist() == [4.0] else "wrong"] += 1
            except Exception as exc:
                results[f"{urls[0]}: {exc!r}"] += 1


@contextlib.contextmanager
def under_load(callers: list[Callable[[threading.Event, Results], None]], results: Results) -> Iterator[None]:
    over = threading.Event()
    threads = [threading.Thread(target=caller, args=(over, results)) for caller in callers]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join(timeout=60)


def restart(server: RunningServer) -> subprocess.Popen[bytes]:
    """Stops a server and starts it again, as it was started; returns when it is ready."""
    server.process.send_signal(signal.SIGTERM)
    # It says so at once, and goes on answering.
    until(lambda: not is_ready(server), 5)
    assert server.process.poll() is None
    assert server.post("/v1/models/affine:predict", BODY)[0] == 200
    assert server.process.wait(timeout=30) == 0
    with server.log.open("ab") as output:
        process = subprocess.Popen(server.process.args, stdout=output, stderr=output)
    until(lambda: is_ready(server), 30)
    return process


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_no_request_fails(tmp_path: Path, transport: str) -> None:
    publish_affine(tmp_path / "affine", slope=2.0, intercept=0.0)
    flags = [f"--transport={transport}", f"--shutdown_delay_seconds={DELAY_S}"]
    results: Results = collections.Counter()
    over = threading.Event()
    with contextlib.ExitStack() as stack:
        servers = [
            stack.enter_context(serve(tmp_path / "affine", model="affine", log_dir=tmp_path, flags=flags))
            for _ in range(2)
        ]
        chooser = Chooser(servers)
        watching = threading.Thread(target=chooser.watch, args=(over,))
        watching.start()
        stack.callback(watching.join)
        stack.callback(over.set)
        callers = [
            lambda over, results: plain_rest(chooser, over, results),
            lambda over, results: plain_grpc(chooser, over, results),
            lambda over, results: ours([f"grpc://{each.grpc_address}" for each in servers], over, results),
            lambda over, results: ours([each.rest_url for each in servers], over, results),
        ]
        with under_load(callers, results):
            for server in servers:
                until(lambda: len(chooser.ready) == 2, 10)
                process = restart(server)
                stack.callback(process.wait, 30)
                stack.callback(process.terminate)
            answered = results["answered"]
            until(lambda: results["answered"] > answered + 40)
        assert results == {"answered": results["answered"]}
        assert results["answered"] > 200
        assert all("Traceback" not in server.log_text() for server in servers)
