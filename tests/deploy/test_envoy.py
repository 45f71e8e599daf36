"""deploy/envoy: the gateway before three servers, with Envoy itself where it is installed."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import struct
import subprocess
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from modelyard.clients import ClientOptions, RetryOptions, connect
from modelyard.wire import array_to_tensor, serving_pb2
from tests.deploy.conftest import ROOT
from tests.support.models import publish_affine
from tests.support.server import RunningServer, free_port, serve

CONFIG = ROOT / "deploy" / "envoy" / "envoy.yaml"
SECONDS = 4.0
#: Through the gateway only: nothing is tried again by the client.
ONCE = ClientOptions(timeout_s=20, retry=RetryOptions(attempts=1))


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[RunningServer]]:
    folder = tmp_path_factory.mktemp("gateway")
    publish_affine(folder / "affine", slope=2.0, intercept=1.0)
    with contextlib.ExitStack() as stack:
        arguments: dict[str, Any] = {"model": "affine", "log_dir": folder, "wait": False}
        started = [stack.enter_context(serve(folder / "affine", **arguments)) for _ in range(3)]
        for server in started:
            server.wait_available()
        yield started


@pytest.fixture(scope="module")
def gateway(servers: list[RunningServer], tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, int]]:
    envoy = os.environ.get("MODELYARD_ENVOY") or shutil.which("envoy")
    if envoy is None:
        pytest.skip("envoy is not installed, and MODELYARD_ENVOY names none")
    ports = {name: free_port() for name in ("grpc", "rest", "admin")}
    text = CONFIG.read_text()
    for name, old in (("grpc", 8500), ("rest", 8501), ("admin", 9901)):
        address = "127.0.0.1" if name == "admin" else "0.0.0.0"
        listener = f"address: {address}, port_value: {old}"
        assert listener in text
        text = text.replace(listener, f"address: 127.0.0.1, port_value: {ports[name]}")
    for index, server in enumerate(servers, 1):
        for old, port in ((8500, server.grpc_port), (8501, server.rest_port)):
            place = f"address: server-{index}, port_value: {old}"
            assert place in text
            text = text.replace(place, f"address: 127.0.0.1, port_value: {port}")
    folder = tmp_path_factory.mktemp("envoy")
    (folder / "envoy.yaml").write_text(text)
    with (folder / "log").open("wb") as log:
        command = [envoy, "-c", str(folder / "envoy.yaml"), "--concurrency", "1", "--disable-hot-restart"]
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        with connect(f"grpc://127.0.0.1:{ports['grpc']}") as client:
            client.wait_ready("affine", 60)
        wait_healthy(ports, 6)
        yield ports
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)


def stats(ports: dict[str, int], query: str) -> Any:
    with urllib.request.urlopen(f"http://127.0.0.1:{ports['admin']}/{query}", timeout=10) as answer:
        return json.load(answer)


def healthy(ports: dict[str, int]) -> int:
    found = stats(ports, "clusters?format=json")["cluster_statuses"]
    hosts = [host for cluster in found for host in cluster["host_statuses"]]
    return sum(
        host["health_status"].get("eds_health_status") == "HEALTHY"
        and not host["health_status"].get("failed_active_health_check")
        for host in hosts
    )


def wait_healthy(ports: dict[str, int], hosts: int) -> None:
    deadline = time.monotonic() + 60
    while healthy(ports) != hosts:
        assert time.monotonic() < deadline, f"{healthy(ports)} hosts are healthy"
        time.sleep(0.1)


def load(url: str, done: threading.Event, answers: Counter[float], errors: list[str]) -> None:
    with connect(url, ONCE) as client:
        while not done.is_set():
            try:
                answer = client.predict("affine", {"x": np.ones(1, np.float32)})
                answers[float(next(iter(answer.outputs.values()))[0])] += 1
            # Whatever it is, it is a failure.
            except Exception as exc:
                errors.append(repr(exc))


@pytest.mark.parametrize("header", ["authorization", "x-api-key", "grpc-timeout"])
def test_pages_of_other_origins_may_send_credentials(header: str) -> None:
    """Of both kinds that the server takes: a browser sends no header that the answer to its first question lacks."""
    (allowed,) = [line for line in CONFIG.read_text().splitlines() if "allow_headers:" in line]
    assert header in re.split(r"[\s,:]+", allowed)


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_calls_are_balanced_one_by_one(protocol: str, gateway: dict[str, int]) -> None:
    """Over one connection."""
    name = "grpc" if protocol == "grpc" else "rest"
    with connect(f"{protocol}://127.0.0.1:{gateway[name]}", ONCE) as client:
        # On a busy machine a health check may be late, and its server is left out for a while: then once more.
        for _ in range(10):
            wait_healthy(gateway, 6)
            before = answered(gateway, name)
            for _ in range(60):
                client.predict("affine", {"x": np.ones(1, np.float32)})
            counts = [after - count for after, count in zip(answered(gateway, name), before, strict=True)]
            if min(counts) >= 10:
                return
    pytest.fail(f"60 calls went to the servers as {counts}, in ten rounds")


def answered(ports: dict[str, int], cluster: str) -> list[int]:
    """How many calls each server has answered."""
    (found,) = (each for each in stats(ports, "clusters?format=json")["cluster_statuses"] if each["name"] == cluster)
    return [
        int(next(each.get("value", 0) for each in host["stats"] if each["name"] == "rq_success"))
        for host in found["host_statuses"]
    ]


def test_grpc_web_from_a_browser(gateway: dict[str, int]) -> None:
    request = serving_pb2.PredictRequest()
    request.model_spec.name = "affine"
    request.inputs["x"].CopyFrom(array_to_tensor(np.ones(1, np.float32)))
    message = request.SerializeToString()
    call = urllib.request.Request(
        f"http://127.0.0.1:{gateway['grpc']}/tensorflow.serving.PredictionService/Predict",
        data=struct.pack(">BI", 0, len(message)) + message,
        headers={"content-type": "application/grpc-web+proto", "x-grpc-web": "1", "origin": "http://page"},
    )
    with urllib.request.urlopen(call, timeout=20) as answer:
        assert answer.headers["access-control-allow-origin"] == "http://page"
        body = answer.read()
    (length,) = struct.unpack(">I", body[1:5])
    (tensor,) = serving_pb2.PredictResponse.FromString(body[5 : 5 + length]).outputs.values()
    assert np.frombuffer(tensor.tensor_content, np.float32).tolist() == [3.0] or list(tensor.float_val) == [3.0]
    assert b"grpc-status:0" in body[5 + length :].replace(b" ", b"")


def test_a_rollout_and_a_server_that_is_killed(
    gateway: dict[str, int], servers: list[RunningServer], record_property: Any
) -> None:
    done, answers, errors = threading.Event(), Counter[float](), list[str]()
    urls = [f"grpc://127.0.0.1:{gateway['grpc']}", f"http://127.0.0.1:{gateway['rest']}"] * 2
    threads = [threading.Thread(target=load, args=(url, done, answers, errors)) for url in urls]
    for thread in threads:
        thread.start()
    time.sleep(SECONDS / 4)
    (base,) = {Path(each.removeprefix("--model_base_path=")) for each in flags(servers[0]) if "base_path" in each}
    publish_affine(base, slope=3.0, intercept=1.0)
    for server in servers:
        server.wait_available(2)
    time.sleep(SECONDS / 4)
    servers[0].process.kill()
    time.sleep(SECONDS / 2)
    done.set()
    for thread in threads:
        thread.join()
    record_property("calls", sum(answers.values()))
    assert errors == []
    assert set(answers) == {3.0, 4.0} and min(answers.values()) > 3, answers
    wait_healthy(gateway, 4)


def flags(server: RunningServer) -> list[str]:
    return [str(each) for each in server.process.args]  # type: ignore[union-attr]
