"""The REST API, over plain HTTP; the rules are those of TensorFlow Serving's json_tensor and its router."""

from __future__ import annotations

import gzip
import json
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.support.models import save_double
from tests.support.server import TRANSPORT, RunningServer, serve

MODEL = "/v1/models/half"


def predict(server: RunningServer, body: Any, path: str = f"{MODEL}:predict") -> tuple[int, Any]:
    status, text = server.post(path, body if isinstance(body, bytes) else json.dumps(body).encode())
    return status, json.loads(text)


GOOD: list[tuple[str, Any, Any]] = [
    ("row", {"instances": [2, 3.0, 4]}, {"predictions": [3.0, 3.5, 4.0]}),
    ("named row", {"instances": [{"x": 2}, {"x": 4}]}, {"predictions": [3.0, 4.0]}),
    ("column", {"inputs": [2, 3, 4]}, {"outputs": [3.0, 3.5, 4.0]}),
    ("named column", {"inputs": {"x": [2], "unknown keys are ignored": 1}}, {"outputs": [3.0]}),
    ("more keys", {"instances": [2], "whatever": None}, {"predictions": [3.0]}),
    ("first of two keys", b'{"instances": [2], "instances": [4]}', {"predictions": [3.0]}),
    ("text after the value", b'{"instances": [2]} trailing', {"predictions": [3.0]}),
    ("elementwise models take any shape", {"instances": [[1, 2], [3, 4]]}, {"predictions": [[2.5, 3.0], [3.5, 4.0]]}),
    (
        "several outputs in rows",
        {"signature_name": "two_inputs", "instances": [{"x": 2, "count": 1}, {"x": 4, "count": 2}]},
        {"predictions": [{"y": 3.0, "next": 2}, {"y": 4.0, "next": 3}]},
    ),
    (
        "several outputs in columns",
        {"signature_name": "two_inputs", "inputs": {"x": [2, 4, 6], "count": [1, 2, 3]}},
        {"outputs": {"y": [3.0, 4.0, 5.0], "next": [2, 3, 4]}},
    ),
    (
        "strings and bytes",
        {"signature_name": "strings", "instances": ["ab", {"b64": "/wA="}]},
        {
            "predictions": [
                {"upper": "AB", "raw_bytes": {"b64": "YWI="}, "length": 2},
                {"upper": "\ufffd\x00", "raw_bytes": {"b64": "/wA="}, "length": 2},
            ]
        },
    ),
    ("a scalar in column form", {"signature_name": "total", "inputs": [1, 2, 4]}, {"outputs": 7.0}),
    ("an empty column", {"inputs": []}, {"outputs": []}),
]


@pytest.mark.parametrize(("body", "expected"), [row[1:] for row in GOOD], ids=[row[0] for row in GOOD])
def test_predict(half_server: RunningServer, body: Any, expected: Any) -> None:
    assert predict(half_server, body) == (200, expected)


def test_numbers_that_json_lacks(half_server: RunningServer) -> None:
    status, text = half_server.post(f"{MODEL}:predict", b'{"instances": [NaN, Infinity, -Infinity, Inf, 1e39, 1e-60]}')
    values = json.loads(text)["predictions"]
    assert status == 200
    assert values[0] != values[0]
    assert values[1:] == [float("inf"), float("-inf"), float("inf"), float("inf"), 2.0]


@pytest.mark.skipif(TRANSPORT == "python", reason="Python reads no more than 2^20 lists")
@pytest.mark.parametrize("path", ["/v1/models/m", "/v1/models/m/versions/1"])
def test_the_first_requests_may_be_as_large_as_any(path: str, tmp_path: Path) -> None:
    """Python has not told the core of the signature yet, and must not read so many lists itself."""
    save_double(tmp_path / "m" / "1", shape=["batch", 1])
    rows = (1 << 20) + 1
    body = b'{"instances": [' + b",".join([b"[1]"] * rows) + b"]}"
    with serve(tmp_path / "m", model="m", log_dir=tmp_path) as server, ThreadPoolExecutor() as pool:
        for status, text in pool.map(lambda _: server.post(f"{path}:predict", body), range(3)):
            assert status == 200, text[:200]
            assert json.loads(text)["predictions"] == [[2.0]] * rows


def test_floats_are_the_shortest_text_that_reads_back(half_server: RunningServer) -> None:
    _, text = half_server.post(f"{MODEL}:predict", b'{"instances": [-3.6, 0.1, 17999996, 33554430]}')
    assert text.split("[")[1].split("\n")[0] == "0.200000048, 2.05, 9e+06, 16777216.0"


def test_version_in_the_url_and_case_of_the_path(half_server: RunningServer) -> None:
    assert predict(half_server, {"instances": [2]}, f"{MODEL}/versions/7:predict") == (200, {"predictions": [3.0]})
    assert predict(half_server, {"instances": [2]}, "/V1/Models/half:predict") == (200, {"predictions": [3.0]})


def test_gzip_bodies(half_server: RunningServer) -> None:
    body = gzip.compress(b'{"instances": [2]}')
    status, text = half_server.post(f"{MODEL}:predict", body, {"Content-Encoding": "gzip"})
    assert (status, json.loads(text)) == (200, {"predictions": [3.0]})
    status, text = half_server.post(f"{MODEL}:predict", b"no gzip", {"Content-Encoding": "gzip"})
    assert (status, "The document is empty" in text) == (400, True)


def test_deflated_bodies(half_server: RunningServer) -> None:
    body = zlib.compress(b'{"instances": [2]}')
    status, text = half_server.post(f"{MODEL}:predict", body, {"Content-Encoding": "deflate"})
    assert (status, json.loads(text)) == (200, {"predictions": [3.0]})
    status, text = half_server.post(f"{MODEL}:predict", body[2:], {"Content-Encoding": "deflate"})
    assert (status, "not in the deflate format that its header names" in text) == (400, True)


@pytest.mark.parametrize("verb", ["predict", "classify"])
def test_an_encoding_that_is_not_known_is_named(half_server: RunningServer, verb: str) -> None:
    status, text = half_server.post(f"{MODEL}:{verb}", b"\x8b\x08\x80", {"Content-Encoding": "br"})
    error = json.loads(text)["error"]
    assert (status, error.startswith("JSON Parse error: Invalid value.")) == (400, True)
    assert error.endswith("Content-Encoding 'br' is not supported; expected gzip or deflate.")
    _, text = half_server.post(f"{MODEL}:{verb}", b"hello", {"Content-Encoding": "Identity"})
    assert "Content-Encoding" not in text


def test_json_is_read_whatever_its_encoding_is_called(half_server: RunningServer) -> None:
    status, text = half_server.post(f"{MODEL}:predict", b'{"instances": [2]}', {"Content-Encoding": "utf-8"})
    assert (status, json.loads(text)) == (200, {"predictions": [3.0]})


BAD: list[tuple[str, Any, int, str]] = [
    ("not JSON", b"hello", 400, "JSON Parse error: Invalid value. at offset: 0"),
    ("empty", b"", 400, "JSON Parse error: The document is empty"),
    ("not an object", [1], 400, "Is not object"),
    ("no key", {}, 400, "Missing 'inputs' or 'instances' key"),
    ("both keys", {"instances": [1], "inputs": [1]}, 400, "expecting only one of 'inputs' or 'instances'"),
    ("instances no list", {"instances": 1}, 400, "'instances' to be an list/array"),
    ("no instances", {"instances": []}, 400, "No values in 'instances' array"),
    (
        "signature_name no string",
        {"signature_name": 1, "instances": [1]},
        400,
        "'signature_name' key must be a string value.",
    ),
    (
        "unknown signature",
        {"signature_name": "nope", "instances": [1]},
        400,
        'Serving signature name: "nope" not found in signature def',
    ),
    ("wrong type", {"instances": ["a"]}, 400, 'JSON Value: "a" Type: String is not of expected type: float'),
    ("null", {"inputs": [None]}, 400, "JSON Value: null Type: Null is not of expected type: float"),
    ("bool among numbers", {"inputs": [1, True]}, 400, "Type: True is not of expected type: float"),
    (
        "float for int",
        {"signature_name": "two_inputs", "inputs": {"x": [1], "count": [1.0]}},
        400,
        "expected type: int64",
    ),
    ("ragged sizes", {"instances": [[1, 2, 3, 4], [1, 2, 3]]}, 400, "Expecting tensor size: 4 but got: 3"),
    ("ragged shapes", {"instances": [[1, 2], [[1, 2]]]}, 400, "Expecting shape [2] but got: [1,2]"),
    (
        "ragged inside",
        {"inputs": [[1, 2], [1]]},
        400,
        "Encountered list at unexpected size: 1 at level: 1 expected size: 2",
    ),
    ("list below value", {"inputs": [1, [1]]}, 400, "Encountered list at unexpected level: 1 expected < 1"),
    ("value above list", {"inputs": [[1], 1]}, 400, "found at incorrect level"),
    ("mixed rows", {"instances": [{"x": 1}, 2]}, 400, "Expecting object but got list at item 1"),
    ("mixed rows, other way", {"instances": [1, {"x": 1}]}, 400, "Expecting value/list but got object at item 1"),
    ("unknown name", {"instances": [{"z": 1}]}, 400, "does not have named input: z"),
    (
        "missing name",
        {"signature_name": "two_inputs", "instances": [{"x": 1}]},
        400,
        "keys must be equal to: count,x",
    ),
    (
        "plain rows for two inputs",
        {"signature_name": "two_inputs", "instances": [1]},
        400,
        "instances is a plain list, but expecting list of objects as multiple input tensors required",
    ),
    (
        "missing column",
        {"signature_name": "two_inputs", "inputs": {"x": [1]}},
        400,
        "Missing named input: count in 'inputs'",
    ),
    ("bad base64", {"signature_name": "strings", "instances": [{"b64": "?"}]}, 400, "Unable to base64 decode"),
    (
        "scalar output in rows",
        {"signature_name": "total", "instances": [1, 2]},
        400,
        "Tensor name: sum has no shape information",
    ),
    ("deep nesting", b'{"instances": ' + b"[" * 100_000, 400, "nested deeper than 100 levels"),
    ("too big", b" " * ((100 << 20) + 1), 413, "more than 104857600 bytes"),
]


@pytest.mark.parametrize(("body", "status", "fragment"), [row[1:] for row in BAD], ids=[row[0] for row in BAD])
def test_bad_bodies_cost_only_the_sender(half_server: RunningServer, body: Any, status: int, fragment: str) -> None:
    received, answer = predict(half_server, body)
    assert (received, fragment in answer["error"]) == (status, True), answer
    assert predict(half_server, {"instances": [2]}) == (200, {"predictions": [3.0]})


URLS: list[tuple[str, str, int, str]] = [
    ("POST", "/v1/models/nobody:predict", 404, "Servable not found for request: Latest(nobody)"),
    ("POST", f"{MODEL}/versions/99:predict", 404, "Servable not found for request: Specific(half, 99)"),
    ("POST", f"{MODEL}/labels/stable:predict", 400, "Unrecognized servable version label: stable"),
    (
        "POST",
        f"{MODEL}/versions/99999999999999999999:predict",
        400,
        "Failed to convert version: 99999999999999999999 to numeric.",
    ),
    ("POST", f"{MODEL}:predict?x=1", 400, f"Malformed request: POST {MODEL}:predict?x=1"),
    ("POST", f"{MODEL}:PREDICT", 400, "Malformed request"),
    ("POST", f"{MODEL}/metadata", 400, "Malformed request"),
    ("GET", f"{MODEL}:predict", 400, f"Malformed request: GET {MODEL}:predict; expected the method POST"),
    ("POST", f"{MODEL}/predict", 400, f"/predict; expected POST and a colon: {MODEL}:predict"),
    ("GET", "/v1/models/", 400, "Malformed request: GET /v1/models/"),
    ("GET", f"{MODEL}?x=1", 404, "Could not find any versions of model half?x=1"),
    ("GET", f"{MODEL}/versions/99", 404, "Could not find version 99 of model half"),
    ("GET", "/v1/models/nobody/metadata", 404, "Servable not found for request: Latest(nobody)"),
    ("GET", "/v1/other", 400, "Malformed request: GET /v1/other"),
    ("GET", "/elsewhere", 404, "Not found: GET /elsewhere. The API is below /v1/models/ and /v2/; health is at /v2/h"),
]


@pytest.mark.parametrize(("method", "path", "status", "fragment"), URLS, ids=[f"{row[0]} {row[1]}" for row in URLS])
def test_urls(half_server: RunningServer, method: str, path: str, status: int, fragment: str) -> None:
    received, text = half_server.get(path) if method == "GET" else half_server.post(path, b'{"instances": [2]}')
    assert (received, fragment in json.loads(text)["error"]) == (status, True), text


def test_bad_json_beats_an_unknown_model(half_server: RunningServer) -> None:
    status, answer = predict(half_server, b"{", "/v1/models/nobody:predict")
    assert (status, "JSON Parse error" in answer["error"]) == (400, True)


def test_status(half_server: RunningServer) -> None:
    expected = {"version": "7", "state": "AVAILABLE", "status": {"error_code": "OK", "error_message": ""}}
    for path in (MODEL, f"{MODEL}/versions/7", f"{MODEL}/labels/ignored"):
        status, text = half_server.get(path)
        assert (status, json.loads(text)) == (200, {"model_version_status": [expected]})


def test_metadata(half_server: RunningServer) -> None:
    status, text = half_server.get(f"{MODEL}/metadata")
    document = json.loads(text)
    assert status == 200
    assert document["model_spec"] == {"name": "half", "signature_name": "", "version": "7"}
    signature = document["metadata"]["signature_def"]["signature_def"]["serving_default"]
    assert signature["method_name"] == "tensorflow/serving/predict"
    assert signature["defaults"] == {}
    assert signature["inputs"]["x"]["dtype"] == "DT_FLOAT"
    assert signature["inputs"]["x"]["tensor_shape"] == {"dim": [{"size": "-1", "name": ""}], "unknown_rank": False}
