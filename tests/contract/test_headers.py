"""Headers, CORS and time-outs of the REST API."""

from __future__ import annotations

import http.client
import json
import socket
from pathlib import Path

import pytest

from tests.support.models import publish_affine
from tests.support.server import RunningServer, serve

ORIGIN = {"Origin": "http://example.org"}


def ask(
    server: RunningServer, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None
) -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.rest_port, timeout=30)
    try:
        connection.request(method, path, body, headers or {})
        response = connection.getresponse()
        return response.status, {name.lower(): value for name, value in response.getheaders()}, response.read()
    finally:
        connection.close()


@pytest.fixture(scope="module", params=[False, True], ids=["plain", "cors"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.mktemp("headers")
    publish_affine(folder / "affine", slope=1.0, intercept=0.0)
    flags = ["--rest_api_enable_cors_support"] if request.param else []
    with serve(folder / "affine", model="affine", log_dir=folder, flags=flags) as running:
        yield running, request.param


def test_every_answer_says_what_it_is(server: tuple[RunningServer, bool]) -> None:
    running, cors = server
    for method, path, body in (
        ("POST", "/v1/models/affine:predict", b'{"instances": [1]}'),
        ("POST", "/v1/models/affine:predict", b"nonsense"),
        ("GET", "/v1/models/affine", None),
    ):
        _, headers, content = ask(running, method, path, body)
        assert headers["content-type"] == "application/json"
        assert headers["content-length"] == str(len(content))
        assert "date" in headers
        assert ("access-control-allow-origin" in headers) is cors
        if cors:
            assert headers["access-control-allow-origin"] == "*"
            assert headers["access-control-allow-methods"] == "POST, GET"
            assert headers["access-control-allow-headers"] == "Content-Type"


def test_options_want_an_origin_whatever_the_flag(server: tuple[RunningServer, bool]) -> None:
    running, _ = server
    assert ask(running, "OPTIONS", "/v1/models/affine:predict", headers=ORIGIN)[::2] == (200, b"")
    assert ask(running, "OPTIONS", "/v1/models/affine:predict")[::2] == (400, b"")
    assert ask(running, "OPTIONS", "/v1/x", headers={"Origin": "file://x"})[::2] == (400, b"")


def test_several_hosts_are_refused(server: tuple[RunningServer, bool]) -> None:
    running, _ = server
    with socket.create_connection(("127.0.0.1", running.rest_port), timeout=20) as connection:
        connection.sendall(b"GET /v1/models/affine HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n")
        assert connection.recv(1000).startswith(b"HTTP/1.1 400 ")


@pytest.mark.parametrize("method", ["PUT", "DELETE", "HEAD", "PATCH"])
def test_other_methods_are_malformed(server: tuple[RunningServer, bool], method: str) -> None:
    running, _ = server
    status, _, content = ask(running, method, "/v1/models/affine:predict", b"{}")
    assert status == 400
    if method != "HEAD":
        assert json.loads(content)["error"] == (
            f"Malformed request: {method} /v1/models/affine:predict; expected the method POST"
        )


def test_the_content_type_of_a_request_is_not_looked_at(server: tuple[RunningServer, bool]) -> None:
    running, _ = server
    headers = {"Content-Type": "application/x-www-form-urlencoded"}
    status, _, content = ask(running, "POST", "/v1/models/affine:predict", b'{"instances": [1]}', headers)
    assert (status, json.loads(content)) == (200, {"predictions": [1.0]})


def test_names_are_percent_decoded(tmp_path: Path) -> None:
    publish_affine(tmp_path / "affine", slope=1.0, intercept=0.0)
    with serve(tmp_path / "affine", model="my model", log_dir=tmp_path, wait=False) as running:
        path = "/v1/models/my%20model"
        running.wait_until(lambda: '"AVAILABLE"' in running.get(path)[1], 30, "AVAILABLE")
        status, _, content = ask(running, "POST", f"{path}:predict", b'{"instances": [1]}')
    assert (status, json.loads(content)) == (200, {"predictions": [1.0]})


def test_a_slow_request_is_told_so(tmp_path: Path) -> None:
    publish_affine(tmp_path / "affine", slope=1.0, intercept=0.0)
    flags = ["--rest_api_timeout_in_ms=300"]
    with serve(tmp_path / "affine", model="affine", log_dir=tmp_path, flags=flags) as running:
        connection = http.client.HTTPConnection("127.0.0.1", running.rest_port, timeout=30)
        # The body never comes whole.
        connection.putrequest("POST", "/v1/models/affine:predict")
        connection.putheader("Content-Length", "100")
        connection.endheaders(b'{"instances": ')
        response = connection.getresponse()
        assert response.status == 504
        assert "No answer within 0.3 s" in json.loads(response.read())["error"]
        connection.close()
        assert ask(running, "POST", "/v1/models/affine:predict", b'{"instances": [1]}')[0] == 200
