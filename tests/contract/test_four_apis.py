"""The same requests with the same answers through every API: both APIs, over gRPC and REST, JSON and binary."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf
import tritonclient.grpc
import tritonclient.http
from tensorflow_serving.apis import predict_pb2, prediction_service_pb2_grpc
from tritonclient.utils import InferenceServerException

from tests.support.identities import save_identities
from tests.support.server import RunningServer, serve

Arrays = Mapping[str, np.ndarray]


class Refused(Exception):
    """An API's error: its text, whatever its code."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("apis")
    save_identities(folder / "zoo" / "3")
    with serve(folder / "zoo", model="zoo", log_dir=folder) as running:
        yield running


DATATYPES = {
    "bool": "BOOL", "uint8": "UINT8", "uint16": "UINT16", "uint32": "UINT32", "uint64": "UINT64", "int8": "INT8",
    "int16": "INT16", "int32": "INT32", "int64": "INT64", "float16": "FP16", "bfloat16": "BF16", "float32": "FP32",
    "float64": "FP64", "object": "BYTES",
}  # fmt: skip


def tfs_grpc(server: RunningServer, model: str, signature: str, inputs: Arrays, outputs: Sequence[str]) -> Arrays:
    message = predict_pb2.PredictRequest(output_filter=outputs)
    message.model_spec.name, message.model_spec.signature_name = model, signature
    for name, array in inputs.items():
        message.inputs[name].CopyFrom(tf.make_tensor_proto(array))
    with grpc.insecure_channel(server.grpc_address) as channel:
        try:
            response = prediction_service_pb2_grpc.PredictionServiceStub(channel).Predict(message, timeout=30)
        except grpc.RpcError as exc:
            raise Refused(exc.details()) from exc
    assert response.model_spec.version.value == 3
    return {name: tf.make_ndarray(tensor) for name, tensor in response.outputs.items()}


def tfs_rest(server: RunningServer, model: str, signature: str, inputs: Arrays, outputs: Sequence[str]) -> Arrays:
    values = {name: array.tolist() for name, array in inputs.items() if array.dtype != object}
    for name, array in inputs.items():
        if array.dtype == object:
            values[name] = [[{"b64": base64.b64encode(item).decode()} for item in row] for row in array.tolist()]
    body = {"signature_name": signature, "inputs": values}
    status, text = server.post(f"/v1/models/{model}:predict", json.dumps(body).encode())
    document = json.loads(text)
    if status != 200:
        raise Refused(document["error"])
    answer = document["outputs"]
    # One output stands alone, without its name.
    return answer if isinstance(answer, dict) else {"": answer}


def oip_json(server: RunningServer, model: str, signature: str, inputs: Arrays, outputs: Sequence[str]) -> Arrays:
    tensors = []
    for name, array in inputs.items():
        flat = array.ravel().tolist()
        data = [item.decode() for item in flat] if array.dtype == object else flat
        tensors.append({"name": name, "shape": array.shape, "datatype": DATATYPES[str(array.dtype)], "data": data})
    body = {"parameters": {"signature_name": signature}, "inputs": tensors}
    if outputs:
        body["outputs"] = [{"name": name} for name in outputs]
    status, text = server.post(f"/v2/models/{model}/infer", json.dumps(body).encode())
    document = json.loads(text)
    if status != 200:
        raise Refused(document["error"])
    assert document["model_version"] == "3"
    kinds = {"UINT64": np.uint64}
    return {
        item["name"]: np.array(item["data"], dtype=kinds.get(item["datatype"])).reshape(item["shape"])
        for item in document["outputs"]
    }


def _triton(library: Any, address: str, call: Callable[..., Any]) -> Arrays:
    client = library.InferenceServerClient(address)
    try:
        result = call(client)
    except InferenceServerException as exc:
        raise Refused(exc.message()) from exc
    finally:
        client.close()
    response = result.get_response()
    if isinstance(response, dict):
        version, names = response["model_version"], [item["name"] for item in response["outputs"]]
    else:
        version, names = response.model_version, [item.name for item in response.outputs]
    assert version == "3"
    return {name: result.as_numpy(name) for name in names}


def _tensor(library: Any, name: str, array: np.ndarray) -> Any:
    tensor = library.InferInput(name, list(array.shape), DATATYPES[str(array.dtype)])
    # tritonclient takes BF16 from float32 arrays.
    tensor.set_data_from_numpy(array.astype(np.float32) if array.dtype == ml_dtypes.bfloat16 else array)
    return tensor


def oip_binary(server: RunningServer, model: str, signature: str, inputs: Arrays, outputs: Sequence[str]) -> Arrays:
    library = tritonclient.http
    return _triton(
        library,
        f"127.0.0.1:{server.rest_port}",
        lambda client: client.infer(
            model,
            [_tensor(library, name, array) for name, array in inputs.items()],
            outputs=[library.InferRequestedOutput(name) for name in outputs] or None,
            parameters={"signature_name": signature},
        ),
    )


def oip_grpc(server: RunningServer, model: str, signature: str, inputs: Arrays, outputs: Sequence[str]) -> Arrays:
    library = tritonclient.grpc
    return _triton(
        library,
        server.grpc_address,
        lambda client: client.infer(
            model,
            [_tensor(library, name, array) for name, array in inputs.items()],
            outputs=[library.InferRequestedOutput(name) for name in outputs] or None,
            parameters={"signature_name": signature},
        ),
    )


APIS = {api.__name__: api for api in (tfs_grpc, tfs_rest, oip_json, oip_binary, oip_grpc)}
V1_JSON = ("tfs_rest",)


@dataclass(frozen=True, kw_only=True)
class Case:
    signature: str
    inputs: Arrays
    expected: Arrays
    outputs: tuple[str, ...] = ()
    #: APIs that have no form for it.
    without: tuple[str, ...] = field(default=())


def identity(dtype: str, values: Any, *, without: tuple[str, ...] = ()) -> Case:
    kind = {"bfloat16": ml_dtypes.bfloat16, "string": object}.get(dtype, dtype)
    array = np.array(values, dtype=kind)
    return Case(signature=f"identity_{dtype}", inputs={"x": array}, expected={"y": array}, without=without)


def f32(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


CASES = {
    "default": Case(signature="", inputs={"x": f32(2, 3, 4)}, expected={"y": f32(3, 3.5, 4)}),
    "numbers that need all digits": Case(
        signature="", inputs={"x": f32(0.1, 1e-7, 1e20)}, expected={"y": f32(0.5) * f32(0.1, 1e-7, 1e20) + f32(2)}
    ),
    "no rows": Case(signature="", inputs={"x": f32()}, expected={"y": f32()}),
    "two inputs and outputs": Case(
        signature="two",
        inputs={"x": f32(2, 4), "n": np.array([1, 1 << 40])},
        expected={"y": f32(3, 4), "next": np.array([2, (1 << 40) + 1])},
    ),
    "one of two outputs": Case(
        signature="two",
        inputs={"x": f32(2), "n": np.array([41])},
        outputs=("next",),
        expected={"next": np.array([42])},
        without=V1_JSON,
    ),
    "scalar output": Case(signature="total", inputs={"x": f32(1, 2)}, expected={"sum": np.array(3, np.float32)}),
    "bool": identity("bool", [[True, False]]),
    "uint8": identity("uint8", [[0, 255]]),
    "uint16": identity("uint16", [[0, 65535]], without=V1_JSON),
    "uint32": identity("uint32", [[0, (1 << 32) - 1]]),
    "uint64": identity("uint64", [[0, (1 << 64) - 1]]),
    "int8": identity("int8", [[-128], [127]]),
    "int16": identity("int16", [[-32768, 32767]]),
    "int32": identity("int32", [[-(1 << 31), (1 << 31) - 1]]),
    "int64": identity("int64", [[-(1 << 63), (1 << 63) - 1]]),
    "float16": identity("float16", [[0.1, -65504.0, 6e-8]], without=V1_JSON),
    "bfloat16": identity("bfloat16", [[0.1, 3e38, -1.0]], without=V1_JSON),
    "float32": identity("float32", [[0.1, np.inf], [-np.inf, 1.17549435e-38]]),
    "NaN": identity("float32", [[np.nan]]),
    "float64": identity("float64", [[0.1, 1e300]]),
    "text": identity("string", [["grüße".encode(), b""], [b'"quoted"', b"a\nb"]]),
    "bytes": identity("string", [[b"\xff\x00\xfe"]], without=("tfs_rest", "oip_json")),
}


@pytest.mark.parametrize(
    ("api", "name"),
    [(api, name) for name, case in CASES.items() for api in APIS if api not in case.without],
)
def test_answers_agree(server: RunningServer, api: str, name: str) -> None:
    case = CASES[name]
    answer = APIS[api](server, "zoo", case.signature, case.inputs, case.outputs)
    if set(answer) == {""}:
        answer = dict.fromkeys(case.expected, answer[""])
    assert set(answer) == set(case.expected)
    for output, expected in case.expected.items():
        received: Any = answer[output]
        if expected.dtype == object:
            flat = [item if isinstance(item, bytes) else item.encode() for item in np.ravel(received).tolist()]
            assert flat == expected.ravel().tolist()
            continue
        if not isinstance(received, np.ndarray):
            received = np.array(received, dtype=np.float64 if expected.dtype == ml_dtypes.bfloat16 else expected.dtype)
        assert received.shape == expected.shape
        # Casting back is exact where the api gave all digits.
        np.testing.assert_array_equal(received.astype(expected.dtype), expected)


BAD: dict[str, tuple[str, str, Arrays, tuple[str, ...], str]] = {
    "unknown model": ("nobody", "", {"x": f32(1)}, (), "Servable not found for request: Latest(nobody)"),
    "unknown signature": ("zoo", "nope", {"x": f32(1)}, (), 'Serving signature key "nope" not found'),
    "missing input": (
        "zoo",
        "two",
        {"x": f32(1)},
        (),
        "input size does not match signature: 1!=2 len({x}) != len({n,x}). Sent extra: {}. Missing but required: {n}.",
    ),
    "wrong name": ("zoo", "", {"z": f32(1)}, (), "Inputs expected to be in the set {x}"),
    "wrong dtype": ("zoo", "", {"x": np.array([1])}, (), "Expects arg[0] to be float but int64 is provided"),
    "unknown output": ("zoo", "", {"x": f32(1)}, ("zz",), "output tensor alias not found in signature: zz"),
}


@pytest.mark.parametrize("api", [api for api in APIS if api != "tfs_rest"])
@pytest.mark.parametrize("name", BAD)
def test_refusals_agree(server: RunningServer, api: str, name: str) -> None:
    model, signature, inputs, outputs, fragment = BAD[name]
    with pytest.raises(Refused) as caught:
        APIS[api](server, model, signature, inputs, outputs)
    assert fragment in str(caught.value)
    assert APIS[api](server, "zoo", "", {"x": f32(2)}, ())["y"].tolist() == [3.0]


def test_every_api_counts_in_the_statistics(server: RunningServer) -> None:
    def counts() -> tuple[int, int]:
        (row,) = json.loads(server.get("/v2/models/zoo/versions/3/stats")[1])["model_stats"]
        return row["inference_stats"]["success"]["count"], row["inference_count"]

    before = counts()
    for api in APIS.values():
        api(server, "zoo", "", {"x": f32(1, 2, 3)}, ())
    after = counts()
    assert (after[0] - before[0], after[1] - before[1]) == (len(APIS), 3 * len(APIS))


def test_the_model_is_where_all_apis_look(server: RunningServer) -> None:
    assert Path(server.log).read_text().count("is AVAILABLE") == 1
