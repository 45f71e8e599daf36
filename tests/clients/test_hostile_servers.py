"""What a server that means harm can make its clients do: end with an error of ours, soon, and without much memory."""

from __future__ import annotations

import asyncio
import json
import socket
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import numpy as np
import pytest

from modelyard import errors
from modelyard.clients import ClientOptions, InferenceTask, RetryOptions, connect, connect_async
from modelyard.clients.http import Http1Reader, Http2Connection
from modelyard.clients.protocols import (
    Answer,
    ExamplesCall,
    PredictCall,
    Target,
    metadata_from_json,
    prediction_from_json,
    prediction_from_message,
    status_from_json,
)
from modelyard.clients.protocols.tfs import _example_messages as examples
from modelyard.clients.protocols.v2 import _codec as v2
from modelyard.clients.values import SignatureInfo, TensorInfo
from modelyard.wire import array_to_tensor, inference_pb2, serving_pb2, tensorflow_pb2
from tests.clients.conftest import connected, peer
from tests.clients.http2_script import (
    ACK,
    DATA,
    END_HEADERS,
    GOAWAY,
    HEADERS,
    HELLO,
    OK,
    PADDED,
    PING,
    PREFACE,
    SETTINGS,
    STATUS,
    WINDOW,
    Http2Peer,
    answer,
    frame,
    message,
)
from tests.clients.http_script import read_message

KINDS = ["", "async"]
ONCE = ClientOptions(retry=RetryOptions(attempts=1))
TARGET = Target(model="m")


@contextmanager
def _little_memory(most: int) -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < most
    finally:
        tracemalloc.stop()


def test_small_parts_of_an_answer_keep_nothing_of_what_came_with_them() -> None:
    core = Http2Connection()
    stream = core.start(b"", b"")
    core.feed(HELLO)
    with _little_memory(3_000_000):
        for at in range(500):
            core.feed(frame(DATA, 0, 1, bytes([at % 256])) + frame(99, 0, 0, bytes(100_000)))
            core.feed(frame(DATA, PADDED, 1, b"\xc8" + bytes(200)) + frame(DATA, 0, 1))
    assert b"".join(stream.parts) == bytes(at % 256 for at in range(500)) and stream.size == 500


def test_small_chunks_take_what_the_body_takes() -> None:
    def read() -> bytes:
        reader = Http1Reader().answer("http://x", 200_000)
        next(reader)
        try:
            reader.send(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
            for _ in range(100):
                reader.send(1000 * b"2\r\nab\r\n")
            reader.send(b"0\r\n\r\n")
        except StopIteration as stop:
            return bytes(stop.value.data)
        raise AssertionError("the answer does not end")

    with _little_memory(1_000_000):
        assert read() == 100_000 * b"ab"


FLOODS = {
    "pings": frame(PING, 0, 0, b"12345678"),
    "settings": HELLO,
    "acknowledgements": frame(SETTINGS, ACK, 0),
    "another stream's data": frame(DATA, 0, 77, b"x"),
    "empty data": frame(DATA, 0, 1),
    "another stream's headers": frame(HEADERS, END_HEADERS, 77, OK),
    "headers": frame(HEADERS, END_HEADERS, 1, OK),
    "an unknown kind": frame(99, 0, 0, b""),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("flood", FLOODS)
def test_endless_frames_end_the_call(flood: str, kind: str) -> None:
    def serve(connection: socket.socket) -> None:
        Http2Peer(connection).request()
        connection.sendall(HELLO)
        while True:
            connection.sendall(1000 * FLOODS[flood])

    with peer(serve) as port, connected(f"grpc://127.0.0.1:{port}", kind, ONCE) as client:
        with pytest.raises(errors.ProtocolError, match=r"frames that carry nothing|blocks of headers"):
            client.status("m", timeout_s=30)


def test_windows_may_open_as_often_as_a_server_likes() -> None:
    core = Http2Connection()
    stream = core.start(b"", b"request")
    core.feed(HELLO + 30_000 * frame(WINDOW, 0, 0, b"\0\0\0\1") + answer())
    assert stream.done and b"".join(stream.parts) == message(STATUS)


def test_what_comes_between_calls_delays_none() -> None:
    first = True

    def serve(connection: socket.socket) -> None:
        nonlocal first
        one, flooding, first = Http2Peer(connection), first, False
        connection.sendall(HELLO)
        stream = one.request()[0]
        connection.sendall(answer(stream=stream))
        while flooding:
            connection.sendall(frame(99, 0, 0, bytes(100_000)))
        connection.recv(1)

    with peer(serve) as port, connected(f"grpc://127.0.0.1:{port}", "", ONCE) as client:
        for _ in range(2):
            assert client.status("m", timeout_s=10).available == (3,)
            time.sleep(0.1)
    assert not first


FULL = {
    "goodbye": frame(GOAWAY, 0, 0, b"\x7f\xff\xff\xff\0\0\0\0"),
    "no more calls": frame(SETTINGS, 0, 0, b"\0\3\0\0\0\0"),
}


@pytest.mark.parametrize("full", FULL)
def test_connections_that_take_no_more_calls_make_room(full: str) -> None:
    opened: list[int] = []

    def serve(connection: socket.socket) -> None:
        opened.append(1)
        one = Http2Peer(connection)
        connection.sendall(HELLO)
        connection.sendall(answer(stream=one.request()[0]) + FULL[full])
        # It stays open.
        while connection.recv(1 << 16):
            pass

    async def run(port: int) -> None:
        async with connect_async(f"grpc://127.0.0.1:{port}", ClientOptions(max_connections=2)) as client:
            for _ in range(5):
                assert (await client.status("m", timeout_s=5)).available == (3,)
                await asyncio.sleep(0.05)

    with peer(serve) as port:
        asyncio.run(run(port))
    assert len(opened) == 5


def test_a_connection_that_says_nothing_is_left() -> None:
    opened: list[int] = []

    def serve(connection: socket.socket) -> None:
        opened.append(1)
        one = Http2Peer(connection)
        connection.sendall(HELLO)
        if len(opened) == 1:
            # The first connection's server hangs after its settings.
            while connection.recv(1 << 16):
                pass
        connection.sendall(answer(stream=one.request()[0]))
        connection.recv(1)

    async def run(port: int) -> None:
        async with connect_async(f"grpc://127.0.0.1:{port}", ONCE) as client:
            with pytest.raises(errors.DeadlineExceededError):
                # Its settings come during this call, and nothing during the next.
                await client.status("m", timeout_s=0.3)
            with pytest.raises(errors.DeadlineExceededError):
                await client.status("m", timeout_s=0.3)
            assert (await client.status("m", timeout_s=5)).available == (3,)

    with peer(serve) as port:
        asyncio.run(run(port))
    assert len(opened) == 2


@pytest.mark.parametrize("cancelled", [False, True])
def test_a_server_that_reads_nothing_keeps_one_body(cancelled: bool) -> None:
    opened: list[int] = []

    def serve(connection: socket.socket) -> None:
        opened.append(1)
        Http2Peer(connection).read(len(PREFACE))
        # Windows that take any request, and then signs of life.
        connection.sendall(frame(SETTINGS, 0, 0, b"\0\4\x7f\xff\xff\xff") + frame(WINDOW, 0, 0, b"\x7f\xff\0\0"))
        while True:
            connection.sendall(frame(PING, 0, 0, b"12345678"))
            time.sleep(0.05)

    async def run(port: int) -> None:
        inputs = {"x": np.zeros(1 << 23, np.float32)}
        async with connect_async(f"grpc://127.0.0.1:{port}", ONCE) as client:
            for _ in range(3):
                with pytest.raises((errors.DeadlineExceededError, TimeoutError)):
                    async with asyncio.timeout(0.5 if cancelled else None):
                        await client.predict("m", inputs, timeout_s=20 if cancelled else 0.5)
            (transport,) = client._engine.pool.all_transports
            channels = cast(Any, transport)._pool._channels
            assert sum(channel.unread for channel in channels) < 2 * inputs["x"].nbytes

    with peer(serve) as port:
        asyncio.run(run(port))
    assert len(opened) == 3


@pytest.mark.parametrize("kind", ["", "async"])
def test_a_model_s_calls_go_to_the_name_that_was_asked_for(kind: str) -> None:
    described = {
        "model_spec": {"name": "another"},
        "metadata": {
            "signature_def": {
                "signature_def": {
                    "serving_default": {
                        "inputs": {"x": {"dtype": "DT_FLOAT", "tensor_shape": {"dim": [{"size": "-1"}]}}},
                        "outputs": {"y": {"dtype": "DT_FLOAT", "tensor_shape": {"dim": [{"size": "-1"}]}}},
                    }
                }
            }
        },
    }
    asked: list[bytes] = []

    def serve(connection: socket.socket) -> None:
        while (received := read_message(connection)) is not None:
            asked.append(received[0].split(b" ")[1])
            body = json.dumps(described if b"metadata" in asked[-1] else {"outputs": [1.0]}).encode()
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))

    with peer(serve) as port, connected(f"http://127.0.0.1:{port}", kind, ONCE) as client:
        model = client.model("mine")
        predicted: Any = model.predict([1.0])
        if kind:
            predicted = client.loop.run_until_complete(predicted)  # type: ignore[attr-defined]
        assert (model.name, predicted["y"].tolist()) == ("mine", [1.0])
    assert set(asked) == {b"/v1/models/mine/metadata", b"/v1/models/mine:predict"}


def _filled(outputs: int) -> bytes:
    response = serving_pb2.PredictResponse()
    for at in range(outputs):
        tensor = response.outputs[f"y{at}"]
        tensor.dtype = tensorflow_pb2.DT_FLOAT
        tensor.tensor_shape.dim.add().size = 1 << 23
        tensor.float_val.append(1.0)
    return response.SerializeToString()


def test_a_few_values_fill_no_more_with_more_outputs() -> None:
    assert len(prediction_from_message(_filled(2), TARGET, "").outputs) == 2
    with _little_memory(100_000_000), pytest.raises(errors.ProtocolError, match="larger together"):
        prediction_from_message(_filled(30), TARGET, "")


def _shaped(sizes: list[int]) -> bytes:
    response = serving_pb2.PredictResponse()
    tensor = response.outputs["y"]
    tensor.dtype = tensorflow_pb2.DT_INT64
    for size in sizes:
        tensor.tensor_shape.dim.add().size = size
    if 0 not in sizes:
        tensor.int64_val.append(1)
    return response.SerializeToString()


def _shaped_v2(sizes: list[int]) -> bytes:
    response = inference_pb2.ModelInferResponse()
    response.outputs.add(name="y", datatype="INT64", shape=sizes)
    response.raw_output_contents.append(b"" if 0 in sizes else bytes(8))
    return response.SerializeToString()


@pytest.mark.parametrize("sizes", [[0, 2**62, 2**62], [1] * 70, [-1], [0, -5]])
def test_shapes_that_no_array_has_are_protocol_errors(sizes: list[int]) -> None:
    call = PredictCall(target=TARGET, inputs={}, signature="", outputs=())
    with pytest.raises(errors.ProtocolError):
        prediction_from_message(_shaped(sizes), TARGET, "")
    with pytest.raises(errors.ProtocolError, match="shape"):
        v2.prediction_from_message(_shaped_v2(sizes), call)
    body = {"outputs": [{"name": "y", "datatype": "INT64", "shape": sizes, "data": [] if 0 in sizes else [1]}]}
    with pytest.raises(errors.ProtocolError, match="shape"):
        v2.prediction_from_answer(_answer(json.dumps(body).encode()), call)


def _answer(body: bytes) -> Any:
    return Answer(body, {})


JSON = {
    "text among numbers": json.dumps([[0.5] * 1000 + ["x" * 500_000]]),
    "digits as text": '["1.5"]',
    "null": "[null]",
    "an object": '[{"a": 1}]',
    "a boolean": "[true]",
    "ragged": "[[1.0], 2.0]",
    "deep": "[" * 90 + "1.0" + "]" * 90,
    "400 digits": "[1" + "0" * 400 + "]",
}


@pytest.mark.parametrize("name", JSON)
def test_values_of_another_kind_are_protocol_errors(name: str) -> None:
    info = {"y": TensorInfo(name="y", dtype="float32", shape=None)}
    signature = SignatureInfo(name="serving_default", method="", inputs={}, outputs=info)
    body = f'{{"outputs": {JSON[name]}}}'.encode()
    with _little_memory(10_000_000), pytest.raises(errors.ProtocolError, match="'y'"):
        prediction_from_json(body, TARGET, signature, ())
    call = PredictCall(target=TARGET, inputs={}, signature="", outputs=())
    body = f'{{"outputs": [{{"name": "y", "datatype": "FP32", "shape": [1], "data": {JSON[name]}}}]}}'.encode()
    with _little_memory(10_000_000), pytest.raises(errors.ProtocolError, match="'y'"):
        v2.prediction_from_answer(_answer(body), call)


@pytest.mark.parametrize(
    "results",
    [
        '[["a", "b"]]',
        '[[["a", 1e5, 2]]]',
        '[[["a", true]]]',
        '[[[["a"], 1.0]]]',
        "[[[1, 2]]]",
        f'[[["a", 1{"0" * 400}]]]',
    ],
)
def test_classes_of_another_form_are_protocol_errors(results: str) -> None:
    call = ExamplesCall(target=TARGET, examples=(), signature="", context=None)
    with pytest.raises(errors.ProtocolError, match=r"\[label, score\]"):
        examples.classification_from_json(f'{{"results": {results}}}'.encode(), call)


@pytest.mark.parametrize("results", ['["a"]', "[true]", "[[1.0]]", f"[1{'0' * 400}]", "[null]"])
def test_values_of_another_form_are_protocol_errors(results: str) -> None:
    call = ExamplesCall(target=TARGET, examples=(), signature="", context=None)
    with pytest.raises(errors.ProtocolError, match="list of numbers"):
        examples.regression_from_json(f'{{"results": {results}}}'.encode(), call)


def test_integers_of_any_size_are_floats() -> None:
    for name in ("bfloat16", "float16", "float32", "float64"):
        info = {"y": TensorInfo(name="y", dtype=name, shape=None)}
        signature = SignatureInfo(name="serving_default", method="", inputs={}, outputs=info)
        got = prediction_from_json(b'{"outputs": [9223372036854775808, 3]}', TARGET, signature, ())["y"]
        assert got.astype(np.float64).tolist() == [np.inf if name == "float16" else 2.0**63, 3.0]


def test_lone_surrogates_are_protocol_errors() -> None:
    info = {"y": TensorInfo(name="y", dtype="string", shape=None)}
    signature = SignatureInfo(name="serving_default", method="", inputs={}, outputs=info)
    with pytest.raises(errors.ProtocolError, match="'y'"):
        prediction_from_json(b'{"outputs": ["\\ud800"]}', TARGET, signature, ())
    for key in ("signature\\ud800", "metadata\\ud800"):
        body = f'{{"model_spec": {{}}, "metadata": {{"signature_def": {{"{key}": {{}}}}}}}}'
        with pytest.raises(errors.ProtocolError, match="SignatureDefMap"):
            metadata_from_json(body.encode(), TARGET)


def test_infinite_integers_are_protocol_errors() -> None:
    with pytest.raises(errors.ProtocolError, match="GetModelStatusResponse"):
        status_from_json(b'{"model_version_status": [{"status": {"error_code": 1e999}}]}', TARGET)


def _outputs(*names: str) -> dict[str, bytes]:
    """An answer of each of the protocols that name their outputs."""
    plain, v2_message = serving_pb2.PredictResponse(), inference_pb2.ModelInferResponse()
    document: dict[str, Any] = {"outputs": []}
    for name in names:
        plain.outputs[name].CopyFrom(array_to_tensor(np.ones(2, np.float32)))
        v2_message.outputs.add(name=name, datatype="FP32", shape=[2]).contents.fp32_contents.extend([1.0, 1.0])
        document["outputs"].append({"name": name, "datatype": "FP32", "shape": [2], "data": [1.0, 1.0]})
    return {
        "grpc": plain.SerializeToString(),
        "grpc+v2": v2_message.SerializeToString(),
        "http+v2": json.dumps(document).encode(),
    }


def _answering(scheme: str, body: bytes) -> Callable[[socket.socket], None]:
    def over_grpc(connection: socket.socket) -> None:
        one = Http2Peer(connection)
        connection.sendall(HELLO)
        while True:
            connection.sendall(answer(body, stream=one.request()[0]))

    def over_rest(connection: socket.socket) -> None:
        while (received := read_message(connection)) is not None:
            data = body if received[0].startswith(b"POST") else b'{"extensions": ["binary_tensor_data"]}'
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(data), data))

    return over_grpc if scheme.startswith("grpc") else over_rest


@pytest.mark.parametrize("scheme", ["grpc", "grpc+v2", "http+v2"])
def test_answers_without_what_was_asked_for_are_protocol_errors(scheme: str) -> None:
    inputs = {"x": np.zeros(2, np.float32)}
    for names, outputs, reason in [((), None, "at least one output"), (("a",), ["a", "b"], r"\['a', 'b'\]; .*\['a'\]")]:
        serve = _answering(scheme, _outputs(*names)[scheme])
        with peer(serve) as port, connect(f"{scheme}://127.0.0.1:{port}", ONCE) as client:
            with pytest.raises(errors.ProtocolError, match=reason):
                client.predict("m", inputs, outputs=outputs)
            rows = list(client.predict_many("m", [{"x": np.float32(0)}] * 2, outputs=outputs))
            assert [type(row.error) for row in rows] == [errors.ProtocolError] * 2
    with peer(_answering(scheme, _outputs("a", "b")[scheme])) as port:
        with connect(f"{scheme}://127.0.0.1:{port}", ONCE) as client:
            assert client.predict("m", inputs, outputs=["b"])["b"].tolist() == [1.0, 1.0]
            assert list(client.predict("m", inputs, outputs=["b"])) == ["b"]


def _of_one_example() -> dict[str, bytes]:
    """Answers of gRPC, for two examples, that have a result for one of them."""
    classification, regression = serving_pb2.ClassificationResponse(), serving_pb2.RegressionResponse()
    classification.result.classifications.add().classes.add(label="a", score=1.0)
    regression.result.regressions.add(value=1.0)
    both = serving_pb2.MultiInferenceResponse()
    both.results.add().classification_result.CopyFrom(classification.result)
    return {
        "classify": classification.SerializeToString(),
        "regress": regression.SerializeToString(),
        "multi_inference": both.SerializeToString(),
    }


@pytest.mark.parametrize("scheme", ["grpc", "http"])
@pytest.mark.parametrize("method", ["classify", "regress", "multi_inference"])
def test_fewer_results_than_examples_are_a_protocol_error(method: str, scheme: str) -> None:
    body = b'{"results": [1.0]}' if method == "regress" else b'{"results": [[["a", 1.0]]]}'
    serve = _answering(scheme, _of_one_example()[method] if scheme == "grpc" else body)
    more = [[InferenceTask(method="classify")]] if method == "multi_inference" else []
    with peer(serve) as port, connect(f"{scheme}://127.0.0.1:{port}", ONCE) as client:
        getattr(client, method)("m", [{"x": 1.0}], *more)
        with pytest.raises(errors.ProtocolError, match="Expected 2 results, one for each example; received 1"):
            getattr(client, method)("m", [{"x": 1.0}, {"x": 2.0}], *more)
