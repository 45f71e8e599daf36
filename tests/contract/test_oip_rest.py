"""The Open Inference Protocol over REST: plain HTTP where bytes matter, the official tritonclient elsewhere."""

from __future__ import annotations

import asyncio
import gzip
import http.client
import json
import shutil
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.http as triton
import tritonclient.http.aio as triton_aio
from tritonclient.utils import InferenceServerException

from tests.support.models import publish_affine
from tests.support.server import RunningServer, serve

MODEL = "/v2/models/half"
JSON_LENGTH = "Inference-Header-Content-Length"


def call(
    server: RunningServer, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None
) -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.rest_port, timeout=30)
    try:
        connection.request(method, path, body, dict(headers or {}))
        response = connection.getresponse()
        return response.status, {name.lower(): value for name, value in response.getheaders()}, response.read()
    finally:
        connection.close()


def infer(server: RunningServer, body: Any, path: str = f"{MODEL}/infer", **headers: str) -> tuple[int, Any]:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    status, _, answer = call(server, "POST", path, data, named)
    return status, json.loads(answer)


def x_input(data: Any, shape: list[int], **more: Any) -> dict[str, Any]:
    return {"name": "x", "datatype": "FP32", "shape": shape, "data": data, **more}


@pytest.fixture
def client(half_server: RunningServer) -> Iterator[triton.InferenceServerClient]:
    with triton.InferenceServerClient(f"127.0.0.1:{half_server.rest_port}") as client:
        yield client


def test_health_is_told_by_status_and_body(half_server: RunningServer, client: triton.InferenceServerClient) -> None:
    for path, expected in (
        ("/v2/health/live", (200, {"live": True})),
        ("/v2/health/ready", (200, {"ready": True})),
        (f"{MODEL}/ready", (200, {"name": "half", "ready": True})),
        (f"{MODEL}/versions/7/ready", (200, {"name": "half", "ready": True})),
        (f"{MODEL}/versions/8/ready", (400, {"error": 'Model "half" version 8 is not ready.'})),
        ("/v2/models/nobody/ready", (400, {"error": 'Model "nobody" is not ready.'})),
    ):
        status, headers, body = call(half_server, "GET", path)
        assert (status, json.loads(body), headers["content-type"]) == (*expected, "application/json")
    assert client.is_server_live() and client.is_server_ready() and client.is_model_ready("half")
    assert not client.is_model_ready("half", "8") and not client.is_model_ready("nobody")


def test_metadata(half_server: RunningServer, client: triton.InferenceServerClient) -> None:
    server = client.get_server_metadata()
    assert server["name"] == "modelyard"
    assert {"binary_tensor_data", "model_repository", "statistics"} <= set(server["extensions"])
    expected = {
        "name": "half",
        "versions": ["7"],
        "platform": "tensorflow_savedmodel",
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1]}],
        "outputs": [{"name": "y", "datatype": "FP32", "shape": [-1]}],
    }
    assert client.get_model_metadata("half") == expected
    assert client.get_model_metadata("half", "7") == expected
    status, _, text = call(half_server, "GET", f"{MODEL}?signature_name=strings")
    assert status == 200
    assert json.loads(text)["inputs"] == [{"name": "text", "datatype": "BYTES", "shape": [-1]}]


def test_the_configuration_is_tritons(half_server: RunningServer, client: triton.InferenceServerClient) -> None:
    config = client.get_model_config("half", "7")
    assert (config["name"], config["platform"], config["backend"]) == ("half", "tensorflow_savedmodel", "tensorflow")
    assert config["version_policy"] == {"latest": {"num_versions": 1}}
    # Of rows of nothing, no batch dimension can be left out.
    assert config["max_batch_size"] == 0
    # Triton's format is there for clients that look it up.
    described = {"name": "x", "data_type": "TYPE_FP32", "format": "FORMAT_NONE", "dims": [-1], "optional": False}
    assert config["input"] == [described]
    assert config["output"] == [{"name": "y", "data_type": "TYPE_FP32", "dims": [-1]}]
    _, _, text = call(half_server, "GET", f"{MODEL}/config?signature_name=strings")
    assert [tensor["data_type"] for tensor in json.loads(text)["input"]] == ["TYPE_STRING"]


def test_no_sequence_is_no_sequence(half_server: RunningServer) -> None:
    parameters = {"sequence_id": 0, "sequence_start": False, "sequence_end": False}
    body = json.dumps({"inputs": [GOOD_INPUT], "parameters": parameters}).encode()
    assert call(half_server, "POST", f"{MODEL}/infer", body)[0] == 200


def test_id_and_parameters_are_echoed(half_server: RunningServer) -> None:
    parameters = {"priority": 1, "note": "ü", "share": 0.5, "flag": True, "binary_data_output": False}
    body = {"id": "42", "parameters": parameters, "inputs": [x_input([2, 3.0, 4], [3])]}
    status, answer = infer(half_server, body)
    assert status == 200
    assert answer == {
        "model_name": "half",
        "model_version": "7",
        "id": "42",
        "parameters": {"priority": 1, "note": "ü", "share": 0.5, "flag": True},
        "outputs": [{"name": "y", "datatype": "FP32", "shape": [3], "data": [3.0, 3.5, 4.0]}],
    }


def test_what_may_be_left_out_may_be_null(half_server: RunningServer) -> None:
    whole = {"id": None, "parameters": None, "outputs": None, "inputs": [x_input([2], [1], parameters=None)]}
    for body in (
        whole,
        *({"inputs": [x_input([2], [1])], name: None} for name in ("id", "parameters", "outputs")),
        {"inputs": [x_input([2], [1])], "outputs": [{"name": "y", "parameters": None}]},
    ):
        status, answer = infer(half_server, body)
        assert (status, answer["outputs"][0]["data"], "id" in answer) == (200, [3.0], False), body
    data, headers = binary(4, struct.pack("<f", 2.0), data=None)
    assert call(half_server, "POST", f"{MODEL}/infer", data, headers)[0] == 200
    status, answer = infer(half_server, {"inputs": [x_input(None, [1])]})
    assert (status, "neither 'data' nor" in answer["error"]) == (400, True)


def test_nested_and_flat_data_mean_the_same(half_server: RunningServer) -> None:
    flat = infer(half_server, {"inputs": [x_input([1, 2, 3, 4], [2, 2])]})
    nested = infer(half_server, {"inputs": [x_input([[1, 2], [3, 4]], [2, 2])]})
    assert flat == nested
    assert flat[1]["outputs"][0]["data"] == [2.5, 3.0, 3.5, 4.0]
    assert flat[1]["outputs"][0]["shape"] == [2, 2]


@pytest.mark.parametrize("binary_in", [True, False])
@pytest.mark.parametrize("binary_out", [True, False])
def test_tritonclient_in_json_and_binary(
    client: triton.InferenceServerClient, binary_in: bool, binary_out: bool
) -> None:
    tensor = triton.InferInput("x", [3], "FP32")
    tensor.set_data_from_numpy(np.array([2, 3, 4], np.float32), binary_data=binary_in)
    output = triton.InferRequestedOutput("y", binary_data=binary_out)
    result = client.infer("half", [tensor], outputs=[output], model_version="7", request_id="1")
    assert result.as_numpy("y").tolist() == [3.0, 3.5, 4.0]
    (described,) = result.get_response()["outputs"]
    assert ("data" in described) is not binary_out
    assert result.get_response()["id"] == "1"


def test_one_answer_may_mix_json_and_binary(half_server: RunningServer) -> None:
    header = json.dumps(
        {
            "parameters": {"signature_name": "two_inputs"},
            "inputs": [
                {"name": "x", "datatype": "FP32", "shape": [1], "parameters": {"binary_data_size": 4}},
                {"name": "count", "datatype": "INT64", "shape": [1], "data": [41]},
            ],
            "outputs": [{"name": "next"}, {"name": "y", "parameters": {"binary_data": True}}],
        }
    ).encode()
    body = header + struct.pack("<f", 2.0)
    status, headers, answer = call(half_server, "POST", f"{MODEL}/infer", body, {JSON_LENGTH: str(len(header))})
    assert status == 200
    assert headers["content-type"] == "application/octet-stream"
    size = int(headers[JSON_LENGTH.lower()])
    document = json.loads(answer[:size])
    assert document["outputs"] == [
        {"name": "next", "datatype": "INT64", "shape": [1], "data": [42]},
        {"name": "y", "datatype": "FP32", "shape": [1], "parameters": {"binary_data_size": 4}},
    ]
    assert answer[size:] == struct.pack("<f", 3.0)


def test_bytes_in_both_forms(half_server: RunningServer, client: triton.InferenceServerClient) -> None:
    tensor = triton.InferInput("text", [2], "BYTES")
    tensor.set_data_from_numpy(np.array([b"ab", b"\xff\x00"], dtype=object))
    result = client.infer("half", [tensor], parameters={"signature_name": "strings"})
    assert result.as_numpy("upper").tolist() == [b"AB", b"\xff\x00"]
    body = {
        "parameters": {"signature_name": "strings"},
        "inputs": [{"name": "text", "datatype": "BYTES", "shape": [1], "data": ["grün"]}],
        "outputs": [{"name": "raw_bytes"}],
    }
    assert infer(half_server, body)[1]["outputs"][0]["data"] == ["grün"]


def test_a_raw_body_is_the_one_input(half_server: RunningServer) -> None:
    data = np.array([2, 3, 4], "<f4").tobytes()
    status, headers, answer = call(half_server, "POST", f"{MODEL}/infer", data, {JSON_LENGTH: "0"})
    assert status == 200
    size = int(headers[JSON_LENGTH.lower()])
    assert json.loads(answer[:size])["outputs"][0]["shape"] == [3]
    assert np.frombuffer(answer[size:], "<f4").tolist() == [3.0, 3.5, 4.0]


@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
def test_compression_both_ways(client: triton.InferenceServerClient, algorithm: str) -> None:
    tensor = triton.InferInput("x", [1000], "FP32")
    tensor.set_data_from_numpy(np.full(1000, 2, np.float32))
    result = client.infer(
        "half", [tensor], request_compression_algorithm=algorithm, response_compression_algorithm=algorithm
    )
    assert (result.as_numpy("y") == 3.0).all()


def test_predictions_are_compressed_only_on_request(half_server: RunningServer) -> None:
    unpack: dict[str, Callable[[bytes], bytes]] = {"gzip": gzip.decompress, "deflate": zlib.decompress}
    cases = (
        ("", None),
        ("br", None),
        ("gzip;q=0", None),
        ("gzip, deflate", "gzip"),
        ("deflate, gzip;q=0.5", "deflate"),
    )
    for accepted, encoding in cases:
        for count in (1, 300_000):
            body = json.dumps({"inputs": [x_input([2] * count, [count])]}).encode()
            _, headers, answer = call(half_server, "POST", f"{MODEL}/infer", body, {"Accept-Encoding": accepted})
            # What fits into one packet is sent as it is.
            packed = encoding if count > 1 else None
            assert headers.get("content-encoding") == packed
            (output,) = json.loads(unpack[packed](answer) if packed else answer)["outputs"]
            assert output["data"] == [3.0] * count


def test_nothing_but_predictions_is_compressed(
    half_server: RunningServer, client: triton.InferenceServerClient
) -> None:
    # aiohttp accepts gzip by itself, and tritonclient inflates predictions only.
    async def told() -> list[Any]:
        async with triton_aio.InferenceServerClient(f"127.0.0.1:{half_server.rest_port}") as client:
            with pytest.raises(InferenceServerException, match="^.404. Servable not found"):
                await client.get_model_metadata("nobody")
            return [
                await client.get_server_metadata(),
                await client.get_model_metadata("half"),
                await client.get_model_config("half"),
                await client.get_inference_statistics("half"),
                *await client.get_model_repository_index(),
            ]

    assert all(each.get("name", "half") in ("half", "modelyard") for each in asyncio.run(told()))
    with pytest.raises(InferenceServerException, match="^.400. input size does not match"):
        client.infer("half", [], response_compression_algorithm="gzip")


def test_classification(client: triton.InferenceServerClient) -> None:
    tensor = triton.InferInput("x", [2, 3], "FP32")
    tensor.set_data_from_numpy(np.array([[2, 6, 4], [8, 0, 2]], np.float32))
    result = client.infer("half", [tensor], outputs=[triton.InferRequestedOutput("y", class_count=2)])
    assert result.as_numpy("y").tolist() == [[b"5.000000:1", b"4.000000:2"], [b"6.000000:0", b"3.000000:2"]]


GOOD_INPUT = x_input([2], [1])
BAD: list[tuple[str, Any, int, str]] = [
    ("no JSON", b"{", 400, "JSON Parse error"),
    ("no object", b"[]", 400, "Is not object"),
    ("no inputs", {}, 400, "Unable to parse 'inputs'"),
    ("inputs of another type", {"inputs": {"x": 1}}, 400, "Unable to parse 'inputs'"),
    ("unnamed input", {"inputs": [{"shape": [1], "datatype": "FP32", "data": [1]}]}, 400, "'name' of an input"),
    ("no datatype", {"inputs": [{"name": "x", "shape": [1], "data": [1]}]}, 400, "'datatype' of input 'x'"),
    ("unknown datatype", {"inputs": [{**GOOD_INPUT, "datatype": "FLOAT"}]}, 400, "unknown datatype 'FLOAT'"),
    ("no shape", {"inputs": [{"name": "x", "datatype": "FP32", "data": [1]}]}, 400, "'shape' of input 'x'"),
    ("negative size", {"inputs": [x_input([1], [-1])]}, 400, "expected whole numbers >= 0"),
    ("huge shape", {"inputs": [x_input([1], [1 << 20, 1 << 20])]}, 413, "more than 2147483648 elements"),
    ("too few values", {"inputs": [x_input([1, 2], [3])]}, 400, "expected [3], or one flat list of 3 values"),
    ("other nesting", {"inputs": [x_input([[1], [2]], [1, 2])]}, 400, "data of shape [2,1]; expected [1,2]"),
    ("ragged", {"inputs": [x_input([[1, 2], [3]], [3])]}, 400, "Input 'x' (FP32): Encountered list"),
    ("text for numbers", {"inputs": [x_input(["a"], [1])]}, 400, "is not of expected type"),
    ("no data", {"inputs": [{"name": "x", "shape": [1], "datatype": "FP32"}]}, 400, "neither 'data' nor"),
    ("twice", {"inputs": [GOOD_INPUT, GOOD_INPUT]}, 400, "Input 'x' is in the request more than once"),
    ("unknown output", {"inputs": [GOOD_INPUT], "outputs": [{"name": "z"}]}, 400, "not found in signature: z"),
    ("other dtype", {"inputs": [{**GOOD_INPUT, "datatype": "INT32"}]}, 400, "to be float but int32 is provided"),
    ("out of range", {"inputs": [{**GOOD_INPUT, "datatype": "INT8", "data": [128]}]}, 400, "takes -128 to 127"),
    ("numeric id", {"id": 1, "inputs": [GOOD_INPUT]}, 400, "'id' is 1; expected a string"),
    ("nested parameter", {"parameters": {"a": []}, "inputs": [GOOD_INPUT]}, 400, "'parameters' of the request"),
    ("reserved", {"parameters": {"triton_x": 1}, "inputs": [GOOD_INPUT]}, 400, "reserved for Triton usage"),
    (
        "unknown signature",
        {"parameters": {"signature_name": "nope"}, "inputs": [GOOD_INPUT]},
        400,
        'Serving signature key "nope" not found',
    ),
    (
        "signature of another type",
        {"parameters": {"signature_name": 1}, "inputs": [GOOD_INPUT]},
        400,
        "expected a string",
    ),
    (
        "sequence",
        {"inputs": [GOOD_INPUT], "parameters": {"sequence_id": 5, "sequence_start": True}},
        501,
        "Parameter 'sequence_id' is 5: modelyard keeps no state",
    ),
    (
        "end of a sequence",
        {"inputs": [GOOD_INPUT], "parameters": {"sequence_end": True}},
        501,
        "Parameter 'sequence_end' is True",
    ),
    (
        "shared memory",
        {"inputs": [{**GOOD_INPUT, "parameters": {"shared_memory_region": "r"}}]},
        501,
        "Shared memory is not supported",
    ),
    (
        "no class",
        {"inputs": [GOOD_INPUT], "outputs": [{"name": "y", "parameters": {"classification": 0}}]},
        400,
        "expected a number >= 1",
    ),
    ("deep nesting", b'{"inputs": ' + b"[" * 100_000, 400, "nested deeper than 100 levels"),
    ("too big", b" " * ((100 << 20) + 1), 413, "more than 104857600 bytes"),
]


@pytest.mark.parametrize(("body", "status", "fragment"), [row[1:] for row in BAD], ids=[row[0] for row in BAD])
def test_bad_bodies_cost_only_the_sender(half_server: RunningServer, body: Any, status: int, fragment: str) -> None:
    received, answer = infer(half_server, body)
    assert (received, fragment in answer["error"]) == (status, True), answer
    assert infer(half_server, {"inputs": [GOOD_INPUT]})[1]["outputs"][0]["data"] == [3.0]


def binary(size: Any, tail: bytes, *, length: str | None = None, **more: Any) -> tuple[bytes, dict[str, str]]:
    item = {"name": "x", "datatype": "FP32", "shape": [1], "parameters": {"binary_data_size": size}, **more}
    header = json.dumps({"inputs": [item]}).encode()
    return header + tail, {JSON_LENGTH: str(len(header)) if length is None else length}


def bytes_for_json() -> tuple[bytes, dict[str, str]]:
    """A string that is no text, whose answer is to be JSON."""
    data = struct.pack("<I", 1) + b"\xff"
    item = {"name": "text", "datatype": "BYTES", "shape": [1], "parameters": {"binary_data_size": len(data)}}
    header = json.dumps({"parameters": {"signature_name": "strings"}, "inputs": [item]}).encode()
    return header + data, {JSON_LENGTH: str(len(header))}


BAD_BINARY: list[tuple[str, tuple[bytes, dict[str, str]], str]] = [
    ("too short", binary(4, b"123"), "only 3 bytes are left"),
    ("too long", binary(4, b"12345"), "take 4"),
    ("not the shape's size", binary(8, b"12345678"), "FP32 [1] takes 4"),
    ("size of another type", binary("4", b"1234"), "expected a number of bytes"),
    ("both forms", binary(4, b"1234", data=[1]), "both 'data' and"),
    ("length beyond the body", binary(4, b"1234", length="9999"), "expected the length of the JSON part"),
    ("length that is no number", binary(4, b"1234", length="x"), "expected the length of the JSON part"),
    ("raw body that is no float", (b"123", {JSON_LENGTH: "0"}), "Input 'x' has 3 bytes"),
    ("bytes that no JSON can carry", bytes_for_json(), 'the parameter "binary_data": true'),
    ("no gzip", (b"xx", {"Content-Encoding": "gzip"}), "not in the gzip format"),
    ("half a gzip", (gzip.compress(b" " * 99)[:-9], {"Content-Encoding": "gzip"}), "ends too early"),
    ("unknown encoding", (b"xx", {"Content-Encoding": "br"}), "'br' is not supported"),
]


@pytest.mark.parametrize(("body", "fragment"), [row[1:] for row in BAD_BINARY], ids=[row[0] for row in BAD_BINARY])
def test_bad_binary_bodies(half_server: RunningServer, body: tuple[bytes, dict[str, str]], fragment: str) -> None:
    status, _, answer = call(half_server, "POST", f"{MODEL}/infer", *body)
    assert (status, fragment in json.loads(answer)["error"]) == (400, True), answer


def test_a_compressed_body_may_not_outgrow_the_limit(half_server: RunningServer) -> None:
    bomb = gzip.compress(b" " * ((100 << 20) + 1))
    status, answer = infer(half_server, bomb, Content_Encoding="gzip")
    assert (status, "more than 104857600 bytes" in answer["error"]) == (413, True)


URLS: list[tuple[str, str, int, str]] = [
    ("POST", "/v2/models/nobody/infer", 404, "Servable not found for request: Latest(nobody)"),
    ("POST", f"{MODEL}/versions/8/infer", 404, "Servable not found for request: Specific(half, 8)"),
    ("POST", f"{MODEL}/versions/x/infer", 400, "version should be an integer > 0"),
    ("GET", "/v2/models/nobody", 404, "Servable not found"),
    ("GET", "/v2/models/nobody/stats", 404, "Model 'nobody' is not loaded"),
    ("GET", f"{MODEL}?signature_name=nope", 400, 'Serving signature key "nope" not found'),
    ("GET", f"{MODEL}/infer", 405, "expected POST"),
    ("POST", "/v2", 405, "expected GET"),
    ("POST", "/v2/health/live", 405, "expected GET"),
    ("GET", f"{MODEL}/config?signature_name=nope", 400, 'Serving signature key "nope" not found'),
    ("GET", "/v2/models/nobody/config", 404, "Servable not found"),
    ("POST", f"{MODEL}/generate", 501, f"modelyard does not implement POST {MODEL}/generate; of Triton's extensions"),
    ("POST", "/v2/systemsharedmemory/region/a/register", 501, "/v2/systemsharedmemory/region/a/register"),
    ("GET", "/v2/elsewhere", 404, "Not found: GET /v2/elsewhere"),
    ("POST", "/v2/repository/mine/index", 501, "'repository_name' specification is not supported"),
    ("POST", "/v2/repository/models/half/unload", 501, "--model_control_mode=explicit"),
]


@pytest.mark.parametrize(("method", "path", "status", "fragment"), URLS, ids=[f"{row[0]} {row[1]}" for row in URLS])
def test_urls(half_server: RunningServer, method: str, path: str, status: int, fragment: str) -> None:
    body = json.dumps({"inputs": [GOOD_INPUT]}).encode() if path.endswith("infer") else b""
    received, headers, text = call(half_server, method, path, body)
    assert (received, fragment in json.loads(text)["error"]) == (status, True), text
    assert ("allow" in headers) is (status == 405)


def test_statistics_tell_successes_from_failures(
    half_server: RunningServer, client: triton.InferenceServerClient
) -> None:
    def row() -> Any:
        (found,) = client.get_inference_statistics("half", "7")["model_stats"]
        return found

    before = row()
    infer(half_server, {"inputs": [x_input([1, 2], [2])]})
    infer(half_server, {"inputs": [{**GOOD_INPUT, "datatype": "INT32"}]})
    after = row()

    def grown(name: str) -> int:
        count: int = after["inference_stats"][name]["count"] - before["inference_stats"][name]["count"]
        return count

    assert {name: grown(name) for name in ("success", "fail", "compute_infer", "queue")} == {
        "success": 1,
        "fail": 1,
        "compute_infer": 1,
        "queue": 1,
    }
    assert after["inference_count"] - before["inference_count"] == 2
    assert after["execution_count"] - before["execution_count"] == 1
    (batch,) = [batch for batch in after["batch_stats"] if batch["batch_size"] == 2]
    assert set(batch) == {"batch_size", "compute_input", "compute_infer", "compute_output"}
    assert all(batch[name]["count"] >= 1 <= batch[name]["ns"] for name in batch if name != "batch_size")
    assert sum(batch["compute_infer"]["count"] for batch in after["batch_stats"]) == after["execution_count"]
    parts = [after["inference_stats"][name]["ns"] for name in ("queue", "compute_input", "compute_infer")]
    assert 0 < sum(parts) <= after["inference_stats"]["success"]["ns"]
    assert after["last_inference"] >= before["last_inference"] > 0


def test_repository_index(client: triton.InferenceServerClient) -> None:
    assert client.get_model_repository_index() == [{"name": "half", "version": "7", "state": "READY", "reason": ""}]


@pytest.fixture
def explicit(tmp_path: Path) -> Iterator[RunningServer]:
    publish_affine(tmp_path / "affine", slope=1.0, intercept=0.5)
    flags = ["--model_control_mode=explicit"]
    with serve(tmp_path / "affine", model="affine", log_dir=tmp_path, flags=flags, wait=False) as server:
        server.wait_until(lambda: server.get("/v2/health/live")[0] == 200, 60, "live")
        yield server


def test_a_version_that_is_loaded_again_is_counted_from_zero(explicit: RunningServer) -> None:
    body = {"inputs": [x_input([2], [1])]}
    with triton.InferenceServerClient(f"127.0.0.1:{explicit.rest_port}") as client:

        def counted() -> int:
            (row,) = client.get_inference_statistics("affine")["model_stats"]
            count: int = row["inference_stats"]["success"]["count"]
            return count

        for expected in (3, 1):
            client.load_model("affine")
            assert counted() == 0
            for _ in range(expected):
                assert infer(explicit, body, "/v2/models/affine/infer")[0] == 200
            assert counted() == expected
            client.unload_model("affine")


def test_models_come_and_go_on_request(explicit: RunningServer, tmp_path: Path) -> None:
    body = {"inputs": [x_input([2], [1])]}
    with triton.InferenceServerClient(f"127.0.0.1:{explicit.rest_port}") as client:
        assert client.is_server_ready()
        assert not client.is_model_ready("affine")
        (entry,) = client.get_model_repository_index()
        assert entry == {"name": "affine", "version": "", "state": "UNAVAILABLE", "reason": "not loaded"}
        status, answer = infer(explicit, body, "/v2/models/affine/infer")
        assert (status, "POST /v2/repository/models/affine/load" in answer["error"]) == (404, True)

        client.load_model("affine")
        assert client.is_model_ready("affine", "1")
        assert infer(explicit, body, "/v2/models/affine/infer")[1]["outputs"][0]["data"] == [2.5]
        publish_affine(tmp_path / "affine", slope=3.0, intercept=0.0)
        client.load_model("affine")
        assert infer(explicit, body, "/v2/models/affine/infer")[1]["outputs"][0]["data"] == [6.0]

        (tmp_path / "affine" / "3").mkdir()
        with pytest.raises(InferenceServerException, match=r"'affine' cannot be loaded: version 3: .* holds no model"):
            client.load_model("affine")
        assert infer(explicit, body, "/v2/models/affine/infer")[1]["model_version"] == "2"

        client.unload_model("affine")
        assert not client.is_model_ready("affine")
        assert client.is_server_ready()
        assert {row["state"] for row in client.get_model_repository_index()} == {"UNAVAILABLE"}
        with pytest.raises(InferenceServerException, match="'nobody' is not configured"):
            client.load_model("nobody")
        with pytest.raises(InferenceServerException, match="Parameter 'config' is not supported"):
            client.load_model("affine", config="{}")


def test_files_that_were_replaced_are_loaded_on_request(explicit: RunningServer, tmp_path: Path) -> None:
    def answered() -> Any:
        return infer(explicit, {"inputs": [x_input([2], [1])]}, "/v2/models/affine/infer")[1]["outputs"][0]["data"]

    publish_affine(tmp_path / "other", slope=3.0, intercept=0.0)
    with triton.InferenceServerClient(f"127.0.0.1:{explicit.rest_port}") as client:
        client.load_model("affine")
        shutil.copytree(tmp_path / "other" / "1", tmp_path / "affine" / "1", dirs_exist_ok=True)
        assert answered() == [2.5]
        client.load_model("affine")
        assert answered() == [6.0]
        next((tmp_path / "affine" / "1").rglob("*.onnx")).write_bytes(b"no model")
        with pytest.raises(InferenceServerException, match="'affine' cannot be loaded: version 1: "):
            client.load_model("affine")
        assert answered() == [6.0] and client.is_model_ready("affine")


def test_a_model_is_loaded_as_soon_as_it_is_in_the_repository(tmp_path: Path) -> None:
    publish_affine(tmp_path / "models" / "first", slope=2.0, intercept=0.5)
    flags = [f"--model_repository={tmp_path / 'models'}", "--model_control_mode=explicit"]
    with serve(None, model="", log_dir=tmp_path, flags=flags, wait=False, poll_s=3600) as server:
        server.wait_until(lambda: server.get("/v2/health/live")[0] == 200, 60, "live")
        publish_affine(tmp_path / "models" / "second", slope=3.0, intercept=0.0)
        with triton.InferenceServerClient(f"127.0.0.1:{server.rest_port}") as client:
            client.load_model("second")
            assert client.is_model_ready("second") and not client.is_model_ready("first")
            with pytest.raises(InferenceServerException, match="'third' is not configured; .*: first, second"):
                client.load_model("third")


def test_a_model_that_does_not_load_makes_the_server_unready(tmp_path: Path) -> None:
    (tmp_path / "broken" / "1").mkdir(parents=True)
    with serve(tmp_path / "broken", model="broken", log_dir=tmp_path, wait=False) as server:
        server.wait_until(lambda: "holds no model" in server.post("/v2/repository/index", b"")[1], 60, "tried")
        (entry,) = json.loads(server.post("/v2/repository/index", b"{}")[1])
        assert (entry["version"], entry["state"]) == ("1", "UNAVAILABLE")
        assert server.post("/v2/repository/index", b'{"ready": true}') == (200, "[]")
        status, _, text = call(server, "GET", "/v2/health/ready")
        assert (status, "The server is not ready" in json.loads(text)["error"]) == (400, True)
        assert call(server, "GET", "/v2/health/live")[::2] == (200, b'{"live": true}')
