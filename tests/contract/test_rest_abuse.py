"""Small REST bodies that once held everybody up, or were answered with 500: each costs its sender a refusal."""

from __future__ import annotations

import gzip
import http.client
import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.models import publish_affine
from tests.support.server import RunningServer, serve

V1 = "/v1/models/affine"
V2 = "/v2/models/affine"
HUGE = b"1" + b"0" * 400
HALF_PAIR = "JSON Parse error: The surrogate pair in string is invalid."
TOO_BIG = "JSON Parse error: Number too big to be stored in double."


@pytest.fixture(scope="module", params=["native", "python"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    if request.param == "native":
        pytest.importorskip("modelyard_core", reason="needs the distribution modelyard-core")
    folder = tmp_path_factory.mktemp("abuse")
    publish_affine(folder / "affine", slope=2.0, intercept=1.0)
    flags = [f"--transport={request.param}"]
    with serve(folder / "affine", model="affine", log_dir=folder, flags=flags) as server:
        yield server


def v2(**fields: Any) -> bytes:
    return json.dumps({"inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "data": [1.0], **fields}]}).encode()


def v2_with(field: str, text: bytes) -> bytes:
    return v2(**{field: "@"}).replace(b'"@"', text)


def packed(*parts: bytes) -> bytes:
    return gzip.compress(b"".join(parts), compresslevel=1)


GZIP = {"Content-Encoding": "gzip"}
QUOTES = b'\\"' * 30_000
CASES: dict[str, tuple[str, bytes, dict[str, str], int, str]] = {
    "quotes in a string without end": (f"{V1}:predict", b'{"instances": "' + QUOTES, {}, 400, "closing quotation mark"),
    "quotes and brackets": (f"{V1}:predict", b'{"a": [' + b"[]," * 200 + b'"' + QUOTES, {}, 400, "closing quotation"),
    "quotes and Inf": (f"{V1}:predict", b'{"a": [Inf, x, "' + QUOTES, {}, 400, "Invalid value"),
    "brackets": (f"{V1}:predict", b'{"instances": ' + b"[" * 400_000, {}, 400, "nested deeper than 100 levels"),
    "dimensions": (f"{V1}:predict", b'{"inputs":' + b"[" * 98 + b"1" + b"]" * 98 + b"}", {}, 400, "at most 64"),
    "digits in a URL": (f"{V1}/versions/{'1' * 5000}:predict", b'{"instances":[1]}', {}, 400, "to numeric"),
    "digits in a URL of v2": (f"{V2}/versions/{'1' * 5000}/infer", v2(), {}, 400, "version string"),
    "noughts in a URL of v2": (f"{V2}/versions/{'0' * 5000}1/infer", v2(), {}, 200, ""),
    "digits in a header": (f"{V2}/infer", v2(), {"Inference-Header-Content-Length": "1" * 5000}, 400, "JSON part"),
    "noughts in a header": (f"{V2}/infer", v2(), {"Inference-Header-Content-Length": "0" * 5000 + "1"}, 400, "JSON"),
    "digits in v1": (f"{V1}:predict", b'{"instances":[' + b"1" * 5000 + b"]}", {}, 400, TOO_BIG),
    "10^400 in v1": (f"{V1}:predict", b'{"instances":[' + HUGE + b"]}", {}, 400, TOO_BIG),
    "10^400 in classify": (f"{V1}:classify", b'{"examples":[{"x":' + HUGE + b"}]}", {}, 400, TOO_BIG),
    "10^400 in v2": (f"{V2}/infer", v2_with("data", b"[%s]" % HUGE), {}, 400, TOO_BIG),
    "10^400 as a size": (f"{V2}/infer", v2_with("shape", b"[%s]" % HUGE), {}, 400, TOO_BIG),
    "10^400 as a parameter": (f"{V2}/infer", v2_with("parameters", b'{"a":%s}' % HUGE), {}, 400, TOO_BIG),
    "sizes": (f"{V2}/infer", v2(shape=[1 << 31] * 30_000), {}, 400, "30000 dimensions; expected at most 64"),
    "sizes of 1": (f"{V2}/infer", v2(shape=[1] * 100), {}, 400, "100 dimensions; expected at most 64"),
    "0 x 2^62": (f"{V2}/infer", v2(shape=[0, 1 << 62], data=[]), {}, 413, "more than"),
    "half a pair as signature": (f"{V1}:predict", b'{"signature_name":"\\ud800","instances":[1]}', {}, 400, HALF_PAIR),
    "half a pair as key": (f"{V1}:predict", b'{"instances":[{"\\uD800":1}]}', {}, 400, HALF_PAIR),
    "half a pair as text": (f"{V1}:predict", b'{"instances":["\\udc00"]}', {}, 400, HALF_PAIR),
    "half a pair in classify": (f"{V1}:classify", b'{"examples":[{"\\ud800":1}]}', {}, 400, HALF_PAIR),
    "no UTF-8 in classify": (f"{V1}:classify", b'{"examples":[{"\xff":1}]}', {}, 400, "a name that is not UTF-8"),
    "no UTF-8 as signature": (f"{V1}:predict", b'{"signature_name":"\xff","instances":[1]}', {}, 400, "not found"),
    "half a pair as id": (f"{V2}/infer", b'{"id":"\\ud800",' + v2()[1:], {}, 400, HALF_PAIR),
    "half a pair as BYTES": (f"{V2}/infer", v2(datatype="BYTES", data=["\ud800"]), {}, 400, HALF_PAIR),
    "no UTF-8 as id": (f"{V2}/infer", b'{"id":"\xff",' + v2()[1:], {}, 400, "not UTF-8"),
    "half a pair in index": ("/v2/repository/index", b'{"ready":"\\ud800"}', {}, 400, HALF_PAIR),
    "gzip of blanks": (f"{V1}:predict", packed(b'{"instances":[1]}', b" " * 50_000_000), GZIP, 200, ""),
    "gzip of numbers": (f"{V1}:predict", packed(b'{"instances":[1', b",1" * 20_000_000, b"]}"), GZIP, 413, "values"),
    "gzip of strings": (f"{V1}:predict", packed(b'{"instances":[""', b',""' * 2_000_000, b"]}"), GZIP, 413, "strings"),
    "gzip of commas": (f"{V1}:predict", packed(b'{"instances":["', b"," * 20_000_000, b'"]}'), GZIP, 400, "String"),
}  # fmt: skip


def post(server: RunningServer, path: str, body: bytes, headers: dict[str, str]) -> tuple[int, Any]:
    # On a quiet machine none of them takes a second; most took more than ten.
    connection = http.client.HTTPConnection("127.0.0.1", server.rest_port, timeout=10)
    try:
        connection.request("POST", path, body, headers)
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    finally:
        connection.close()


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_each_costs_only_its_sender(server: RunningServer, case: tuple[str, bytes, dict[str, str], int, str]) -> None:
    path, body, headers, status, text = case
    received, answer = post(server, path, body, headers)
    assert (received, text in answer.get("error", "")) == (status, True), answer
    assert post(server, f"{V1}:predict", b'{"instances": [2]}', {}) == (200, {"predictions": [5.0]})
    # Nor is it a fault of ours.
    assert "Traceback" not in server.log_text()
