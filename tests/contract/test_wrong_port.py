"""Clients that are at the wrong port are told so, in the protocol that they speak."""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import grpc
import numpy as np
import pytest

from modelyard.clients import connect
from modelyard.errors import InvalidRequestError, UnsupportedError
from tests.support.models import publish_affine
from tests.support.server import TRANSPORT, RunningServer, free_port, serve

needs_words_on_the_grpc_port = pytest.mark.skipif(
    TRANSPORT == "python", reason="gRPC's own server answers HTTP/1.1 by itself"
)
needs_words_on_the_rest_port = pytest.mark.skipif(TRANSPORT == "python", reason="uvicorn speaks no HTTP/2")
STATUS = "/tensorflow.serving.ModelService/GetModelStatus"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("ports")
    publish_affine(folder / "affine", slope=1.0, intercept=0.0)
    with serve(folder / "affine", model="affine", log_dir=folder) as running:
        yield running


def refused(address: str) -> grpc.RpcError:
    with grpc.insecure_channel(address) as channel, pytest.raises(grpc.RpcError) as caught:
        channel.unary_unary(STATUS, bytes, bytes)(b"", timeout=30)
    return caught.value


@needs_words_on_the_rest_port
def test_grpc_on_the_rest_port(server: RunningServer) -> None:
    error = refused(f"127.0.0.1:{server.rest_port}")
    assert error.code() is grpc.StatusCode.UNIMPLEMENTED
    assert error.details() == f"This is the REST port; gRPC is on port {server.grpc_port}."
    with (
        connect(f"grpc://127.0.0.1:{server.rest_port}") as client,
        pytest.raises(UnsupportedError, match="gRPC is on port"),
    ):
        client.predict("affine", {"x": np.ones(1, np.float32)})


@needs_words_on_the_grpc_port
@pytest.mark.parametrize("size", [0, 4 << 20], ids=["small", "large"])
def test_rest_on_the_grpc_port(server: RunningServer, size: int) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", server.grpc_port, timeout=30)
    connection.request("POST", "/v1/models/affine:predict", b" " * size)
    response = connection.getresponse()
    assert (response.status, response.getheader("content-type")) == (400, "application/json")
    expected = f"This is the gRPC port; the REST API is on port {server.rest_port}."
    assert json.loads(response.read()) == {"error": expected}
    connection.close()
    with (
        connect(f"http://127.0.0.1:{server.grpc_port}") as client,
        pytest.raises(InvalidRequestError, match="the REST API is on port"),
    ):
        client.predict("affine", {"x": np.ones(1, np.float32)})


def test_both_ports_go_on_serving(server: RunningServer) -> None:
    refused(f"127.0.0.1:{server.rest_port}")
    for url in (f"grpc://{server.grpc_address}", server.rest_url):
        with connect(url) as client:
            assert client.predict("affine", {"x": np.array([3], np.float32)})["y"].tolist() == [3.0]


@needs_words_on_the_grpc_port
@needs_words_on_the_rest_port
@pytest.mark.parametrize("off", ["port", "rest_api_port"])
def test_a_port_that_there_is_not(tmp_path: Path, off: str) -> None:
    publish_affine(tmp_path / "affine", slope=1.0, intercept=0.0)
    port = free_port()
    on = {"port": "rest_api_port", "rest_api_port": "port"}[off]
    command = [
        sys.executable,
        "-m",
        "modelyard.serving",
        f"--model_base_path={tmp_path / 'affine'}",
        f"--{off}=0",
        f"--{on}={port}",
    ]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        assert any("listening" in line for line in process.stderr)
        if off == "port":
            text = refused(f"127.0.0.1:{port}").details()
            assert text == "This is the REST port; the server has no port for gRPC: start it with --port=8500."
        else:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
            connection.request("GET", "/")
            text = json.loads(connection.getresponse().read())["error"]
            connection.close()
            assert "no port for the REST API: start it with --rest_api_port=8501." in text
    finally:
        process.terminate()
        process.communicate(timeout=30)
