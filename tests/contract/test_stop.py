"""Stopping: what was accepted is answered, over both protocols and on connections that stay open."""

from __future__ import annotations

import collections
import contextlib
import http.client
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import numpy as np
import psutil
import pytest

from modelyard.wire import PREDICTION_SERVICE, array_to_tensor, serving_pb2
from tests.support.models import publish_affine, publish_slow
from tests.support.namespaces import ALONE, needs_namespaces
from tests.support.server import RunningServer, free_port, serve

BODY = b'{"instances": [2.0]}'
CALLERS = 6


def call_grpc(server: RunningServer, results: collections.Counter[str]) -> None:
    """Calls on one channel until there is no server any more."""
    request = serving_pb2.PredictRequest()
    request.model_spec.name = "affine"
    request.inputs["x"].CopyFrom(array_to_tensor(np.array([2.0], np.float32)))
    with grpc.insecure_channel(server.grpc_address) as channel:
        predict = channel.unary_unary(PREDICTION_SERVICE["Predict"].path, bytes, bytes)
        while True:
            try:
                predict(request.SerializeToString(), timeout=60)
                results["answered"] += 1
            except grpc.RpcError as exc:
                refused = (
                    exc.code() is grpc.StatusCode.UNAVAILABLE and "failed to connect" in str(exc.details()).lower()
                )
                results["refused" if refused else f"{exc.code()} {exc.details()}"] += 1
                return


def call_rest(server: RunningServer, results: collections.Counter[str]) -> None:
    """Calls on a connection that is kept alive until there is no server any more."""
    connection = http.client.HTTPConnection("127.0.0.1", server.rest_port, timeout=60)
    while True:
        try:
            connection.request("POST", "/v1/models/affine:predict", BODY)
            response = connection.getresponse()
            response.read()
            results["answered" if response.status == 200 else str(response.status)] += 1
        except ConnectionRefusedError:
            results["refused"] += 1
            return
        except (OSError, http.client.HTTPException) as exc:
            results[repr(exc)] += 1
            return


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_under_load_fails_no_request(tmp_path: Path, number: signal.Signals) -> None:
    publish_affine(tmp_path / "affine", slope=1.0, intercept=0.0)
    over_grpc: collections.Counter[str] = collections.Counter()
    over_rest: collections.Counter[str] = collections.Counter()
    with serve(tmp_path / "affine", model="affine", log_dir=tmp_path) as server:
        callers = [threading.Thread(target=call_grpc, args=(server, over_grpc)) for _ in range(CALLERS)]
        callers += [threading.Thread(target=call_rest, args=(server, over_rest)) for _ in range(CALLERS)]
        for caller in callers:
            caller.start()
        server.wait_until(lambda: min(over_grpc["answered"], over_rest["answered"]) > 50, 60, "under load")
        server.process.send_signal(number)
        for caller in callers:
            caller.join(timeout=60)
        assert server.process.wait(timeout=60) == 0
        assert "Traceback" not in server.log_text()
    # Every request was answered until one found nobody to connect to.
    assert over_grpc == {"answered": over_grpc["answered"], "refused": CALLERS}
    assert over_rest == {"answered": over_rest["answered"], "refused": CALLERS}


def test_running_requests_finish(tmp_path: Path) -> None:
    publish_slow(tmp_path / "slow", loops=1500)
    with serve(tmp_path / "slow", model="slow", log_dir=tmp_path) as server, ThreadPoolExecutor(1) as pool:
        process = psutil.Process(server.process.pid)
        busy = process.cpu_times().user
        answer = pool.submit(server.post, "/v1/models/slow:predict", BODY)
        server.wait_until(lambda: process.cpu_times().user > busy + 0.3, 60, "computing")
        server.process.terminate()
        assert answer.result() == (200, answer.result()[1])
        assert server.process.wait(timeout=60) == 0
        assert server.log_text().rstrip().endswith("stopped")


def test_the_health_service_says_goodbye_first(tmp_path: Path) -> None:
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    publish_affine(tmp_path / "affine", slope=1.0, intercept=0.0)
    with serve(tmp_path / "affine", model="affine", log_dir=tmp_path) as server:
        with grpc.insecure_channel(server.grpc_address) as channel:
            watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(), timeout=60)
            while next(watch).status != health_pb2.HealthCheckResponse.SERVING:
                pass
            server.process.terminate()
            # The stream ends by itself: a client that watches must not hold up the stop.
            assert [response.status for response in watch] == [health_pb2.HealthCheckResponse.NOT_SERVING]
        assert server.process.wait(timeout=60) == 0


def test_a_second_signal_does_not_wait(tmp_path: Path) -> None:
    publish_slow(tmp_path / "slow", loops=12_000)
    flags = ["--drain_seconds=60"]
    with (
        serve(tmp_path / "slow", model="slow", log_dir=tmp_path, flags=flags) as server,
        ThreadPoolExecutor(1) as pool,
    ):
        process = psutil.Process(server.process.pid)
        busy = process.cpu_times().user
        answer = pool.submit(server.post, "/v1/models/slow:predict", BODY)
        server.wait_until(lambda: process.cpu_times().user > busy + 0.3, 60, "computing")
        server.process.terminate()
        server.wait_until(lambda: "running requests get" in server.log_text(), 30, "stopping")
        server.process.terminate()
        assert server.process.wait(timeout=10) == 128 + signal.SIGTERM
        with pytest.raises((OSError, http.client.HTTPException)):
            answer.result()


def test_a_server_that_was_killed_leaves_a_socket_that_the_next_one_takes(tmp_path: Path) -> None:
    publish_affine(tmp_path / "affine", slope=1.0, intercept=0.0)
    path = tmp_path / "grpc.sock"
    flags = [f"--grpc_socket_path={path}", "--port=0"]
    request = serving_pb2.PredictRequest()
    request.model_spec.name = "affine"
    request.inputs["x"].CopyFrom(array_to_tensor(np.array([2.0], np.float32)))
    options = [("grpc.initial_reconnect_backoff_ms", 50), ("grpc.max_reconnect_backoff_ms", 200)]
    answered = threading.Event()

    def call_until_it_fails(predict: grpc.UnaryUnaryMultiCallable[bytes, bytes]) -> grpc.StatusCode:
        while True:
            try:
                predict(request.SerializeToString(), timeout=30)
                answered.set()
            except grpc.RpcError as exc:
                return exc.code()

    with grpc.insecure_channel(f"unix:{path}", options) as channel, ThreadPoolExecutor(4) as pool:
        predict = channel.unary_unary(PREDICTION_SERVICE["Predict"].path, bytes, bytes)
        with serve(tmp_path / "affine", model="affine", log_dir=tmp_path, flags=flags) as server:
            callers = [pool.submit(call_until_it_fails, predict) for _ in range(4)]
            assert answered.wait(30)
            server.process.kill()
            # Nobody waits for the deadline.
            assert [caller.result(10) for caller in callers] == [grpc.StatusCode.UNAVAILABLE] * 4
        assert path.is_socket()
        with serve(tmp_path / "affine", model="affine", log_dir=tmp_path, flags=flags) as server:
            # The same channel finds the new server.
            response = serving_pb2.PredictResponse.FromString(
                predict(request.SerializeToString(), timeout=30, wait_for_ready=True)
            )
            assert response.outputs["y"].float_val == [2.0]
            server.process.terminate()
            assert server.process.wait(timeout=30) == 0
        assert not path.exists()


def test_a_log_that_nobody_reads_holds_nothing_up(tmp_path: Path) -> None:
    publish_affine(tmp_path / "affine", slope=2.0, intercept=0.0)
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(writer, bytes(4096))
    os.set_blocking(writer, True)
    grpc_port, rest_port, log = free_port(), free_port(), tmp_path / "unread.log"
    log.touch()
    command = [
        sys.executable, "-m", "modelyard.serving", f"--port={grpc_port}", f"--rest_api_port={rest_port}",
        "--model_name=affine", f"--model_base_path={tmp_path / 'affine'}",
    ]  # fmt: skip
    with subprocess.Popen(command, stderr=writer) as process:
        try:
            server = RunningServer(process=process, model="affine", grpc_port=grpc_port, rest_port=rest_port, log=log)
            server.wait_available()
            assert server.post("/v1/models/affine:predict", BODY)[0] == 200
            process.terminate()
            assert process.wait(timeout=30) == 0
        finally:
            process.kill()
            os.close(writer)
            os.close(reader)


@needs_namespaces
def test_process_1_can_be_stopped_while_it_starts(tmp_path: Path) -> None:
    # It reads this before it listens, and waits for us.
    config = tmp_path / "models.config"
    os.mkfifo(config)
    modelyard = Path(sys.executable).with_name("modelyard")
    with subprocess.Popen([*ALONE, modelyard, "serve", f"--model_config_file={config}"]) as process:
        try:
            with config.open("w"):
                (first,) = psutil.Process(process.pid).children()
                first.terminate()
                assert process.wait(timeout=30) == 128 + signal.SIGTERM
        finally:
            process.kill()
