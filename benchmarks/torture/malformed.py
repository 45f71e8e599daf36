"""Malformed input over sockets: drawn by its structure, and broken byte by byte."""

from __future__ import annotations

import gzip
import json
import random
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from benchmarks.torture import frames
from benchmarks.torture.cases import Result, Target, case, expect
from benchmarks.torture.repository import served
from modelyard.clients.http import decode_fields
from modelyard.wire import inference_pb2, serving_pb2, tensorflow_pb2
from tests.support.forms import mutated
from tests.support.models import publish_regressor

_BOTH = ("native", "python")
_EXAMPLES = "examples"
#: Drawn examples are sent as they are and with so many changes each.
_CHANGED = 49
#: Requests that are sent before their answers are read.
_TOGETHER = 50
_WORDS = [
    b"-1", b"1e400", b"NaN", b"\\ud800", b'"', b"[", b"]", b"{", b"}", b"null", b"\0", b"\xff", b"9" * 40, b'{"b64":"',
    b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", b"[[[[[[[[", b"\\u0000", b"true", b"1e-9999", b"\x80",
]  # fmt: skip

_NUMBERS = st.one_of(st.integers(), st.floats(), st.sampled_from([10**400, -(2**63), 2**63, 1e308, 0, -0.0]))
_JSON: st.SearchStrategy[Any] = st.recursive(
    st.one_of(st.none(), st.booleans(), _NUMBERS, st.text(max_size=8)),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=12,
)
_SIZES = st.sampled_from([0, 1, 2, 3, -1, 2**31, 2**62, 2**63 - 1, -(2**63)])
_SHAPES = st.lists(_SIZES, max_size=5) | st.integers(0, 3000).map(lambda rank: [1] * rank)


def _v1(draw: Any) -> bytes:
    fields = st.sampled_from(["instances", "inputs", "signature_name", "examples", "context", "x"])
    return _dumped(draw(st.dictionaries(fields, _JSON, max_size=4)))


def _v2_document(draw: Any, **more: Any) -> dict[str, Any]:
    tensor = st.fixed_dictionaries(
        {"name": st.sampled_from(["x", "y", ""]), "shape": _SHAPES},
        optional={
            "datatype": st.sampled_from(["FP32", "INT64", "BYTES", "FP16", "BOOL", "NONE", ""]) | _JSON,
            "data": _JSON,
            "parameters": st.dictionaries(st.sampled_from(["binary_data_size", "classification"]), _JSON, max_size=2),
        },
    )  # fmt: skip
    document = st.fixed_dictionaries(
        {"inputs": st.lists(tensor, max_size=3) | _JSON}, optional={"id": _JSON, "outputs": _JSON, "parameters": _JSON}
    )
    return {**draw(document), **more}


def _dumped(document: Any) -> bytes:
    return json.dumps(document).encode("utf-8", "surrogatepass")


def _tensor(draw: Any) -> tensorflow_pb2.TensorProto:
    tensor = tensorflow_pb2.TensorProto(dtype=draw(st.sampled_from([0, 1, 2, 3, 7, 9, 10, 14, 19, 20, 29, 101, 999])))
    for size in draw(_SHAPES):
        tensor.tensor_shape.dim.add(size=size)
    tensor.tensor_content = draw(st.binary(max_size=24))
    tensor.float_val.extend(draw(st.lists(st.floats(width=32), max_size=4)))
    tensor.int_val.extend(draw(st.lists(st.integers(-(2**31), 2**31 - 1), max_size=3)))
    tensor.string_val.extend(draw(st.lists(st.binary(max_size=5), max_size=3)))
    tensor.half_val.extend(draw(st.lists(st.integers(-1, 2**31 - 1), max_size=3)))
    return tensor


def _predict(draw: Any) -> bytes:
    request = serving_pb2.PredictRequest()
    request.model_spec.name = draw(st.sampled_from(["victim", "", "nobody", "\0"]))
    request.model_spec.signature_name = draw(st.sampled_from(["", "serving_default", "x"]))
    if draw(st.booleans()):
        request.model_spec.version.value = draw(_SIZES)
    for name in draw(st.lists(st.sampled_from(["x", "y", ""]), max_size=2)):
        request.inputs[name].CopyFrom(_tensor(draw))
    request.output_filter.extend(draw(st.lists(st.sampled_from(["y", "z", ""]), max_size=3)))
    return request.SerializeToString()


def _classify(draw: Any) -> bytes:
    request = serving_pb2.ClassificationRequest()
    request.model_spec.name = "victim"
    for _ in range(draw(st.integers(0, 2))):
        example = request.input.example_list.examples.add()
        feature = example.features.feature[draw(st.text(max_size=4))]
        feature.float_list.value.extend(draw(st.lists(st.floats(width=32), max_size=3)))
    return request.SerializeToString()


def _regress_json(draw: Any) -> bytes:
    value = st.one_of(_NUMBERS, st.lists(_NUMBERS, max_size=2), _JSON)
    example = st.dictionaries(st.sampled_from(["x", "x", "y"]), value, max_size=2)
    document = st.fixed_dictionaries({"examples": st.lists(example, max_size=3)}, optional={"context": example})
    return _dumped(draw(document))


def _regress(draw: Any) -> bytes:
    request = serving_pb2.RegressionRequest()
    request.model_spec.name = _EXAMPLES
    for _ in range(draw(st.integers(1, 3))):
        # Most are as the model wants them, so that what is broken is behind them.
        feature = request.input.example_list.examples.add().features.feature[draw(st.sampled_from(["x"] * 7 + ["y"]))]
        kind = draw(st.sampled_from(["float"] * 7 + ["int64", "bytes", ""]))
        if kind == "float":
            feature.float_list.value.extend(draw(st.lists(st.floats(width=32), min_size=1, max_size=2)))
        elif kind == "int64":
            feature.int64_list.value.extend(draw(st.lists(_SIZES, max_size=2)))
        elif kind == "bytes":
            feature.bytes_list.value.extend(draw(st.lists(st.binary(max_size=5), max_size=2)))
    return request.SerializeToString()


def _infer(draw: Any) -> bytes:
    request = inference_pb2.ModelInferRequest(model_name=draw(st.sampled_from(["victim", "", "nobody"])))
    request.model_version = draw(st.sampled_from(["", "1", "9" * 5000, "-1", "\0"]))
    for _ in range(draw(st.integers(0, 2))):
        tensor = request.inputs.add(name="x", datatype=draw(st.sampled_from(["FP32", "BYTES", "", "FP16", "BOOL"])))
        tensor.shape.extend(draw(_SHAPES))
        tensor.contents.fp32_contents.extend(draw(st.lists(st.floats(width=32), max_size=3)))
        tensor.contents.bytes_contents.extend(draw(st.lists(st.binary(max_size=4), max_size=2)))
    request.raw_input_contents.extend(draw(st.lists(st.binary(max_size=20), max_size=2)))
    return request.SerializeToString()


def drawn(make: Callable[[Any], bytes], seconds: float, send: Callable[[Sequence[bytes]], None]) -> int:
    """Draws inputs for a while, breaks each in some ways, and sends them in groups; returns how many."""
    rng, waiting, sent = random.Random(25), [], 0
    end = time.monotonic() + seconds

    def keep(data: Any) -> None:
        content = make(data.draw)
        waiting.extend([content, *(mutated(rng, content, _WORDS) for _ in range(_CHANGED))])

    number = 0
    while time.monotonic() < end:
        run = settings(
            max_examples=20, database=None, deadline=None, phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )(seed(number)(given(st.data())(keep)))  # fmt: skip
        run()
        number += 1
        while waiting:
            group, waiting[:] = waiting[:_TOGETHER], waiting[_TOGETHER:]
            send(group)
            sent += len(group)
    return sent


class _Rest:
    """A kept connection that sends many requests at once."""

    def __init__(self, target: Target, path: str, *fields: str) -> None:
        self._target, self._head = target, "".join(f"{field}\r\n" for field in fields)
        self._path, self._socket = path, self._connect()
        self.statuses: Counter[int] = Counter()

    def close(self) -> None:
        """Ends the connection."""
        self._socket.close()

    def _connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self._target.server.rest_port), timeout=20)

    def send(self, bodies: Sequence[bytes], fields: Sequence[str] = ()) -> None:
        """Sends bodies, and reads their answers."""
        parts = []
        for number, body in enumerate(bodies):
            more = fields[number] if fields else ""
            head = f"POST {self._path} HTTP/1.1\r\nhost: x\r\n{self._head}{more}content-length: {len(body)}\r\n\r\n"
            parts.append(head.encode() + body)
        self._socket.sendall(b"".join(parts))
        answers = _http_answers(self._socket)
        for body in bodies:
            status, text = next(answers)
            self.statuses[status] += 1
            expect(status < 500, f"{self._path} answered {status} {text[:200]!r} to {body[:300]!r}")


def _http_answers(connection: socket.socket) -> Iterator[tuple[int, bytes]]:
    received = b""
    while True:
        while b"\r\n\r\n" not in received:
            more = connection.recv(1 << 16)
            expect(more, "the connection ended")
            received += more
        head, _, received = received.partition(b"\r\n\r\n")
        fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:])
        size = int(fields.get(b"content-length", 0))
        while len(received) < size:
            more = connection.recv(1 << 16)
            expect(more, "the connection ended")
            received += more
        yield int(head.split()[1]), received[:size]
        received = received[size:]


class _Grpc:
    """A connection that begins many calls at once."""

    def __init__(self, target: Target, path: str) -> None:
        self._port, self._path = target.server.grpc_port, path
        self.codes: Counter[int] = Counter()
        self._begin()

    def close(self) -> None:
        """Ends the connection."""
        self._socket.close()

    def _begin(self) -> None:
        self._socket = socket.create_connection(("127.0.0.1", self._port), timeout=20)
        # No table of header fields: each block stands for itself.
        self._socket.sendall(frames.PREFACE + frames.frame(frames.SETTINGS, 0, b"\0\1\0\0\0\0"))
        self._stream, self._received = 1, b""

    def send(self, messages: Sequence[bytes]) -> None:
        """Sends messages, and reads the statuses of their calls."""
        if self._stream > 1 << 20:
            self._socket.close()
            self._begin()
        parts, sent = [], {}
        for message in messages:
            parts.append(frames.head(self._stream, self._path))
            parts.append(frames.data(self._stream, frames.message(message), end=True))
            sent[self._stream] = message
            self._stream += 2
        self._socket.sendall(b"".join(parts))
        taken = 0
        while sent:
            kind, flags, stream, payload = self._frame()
            taken += len(payload) if kind == frames.DATA else 0
            expect(kind != frames.GOAWAY, f"the connection ended: {payload!r}")
            if kind == frames.SETTINGS and not flags:
                self._socket.sendall(frames.frame(frames.SETTINGS, 1))
            if kind == frames.HEADERS and flags & frames.END_STREAM:
                fields = dict(decode_fields(payload))
                code = int(fields["grpc-status"])
                self.codes[code] += 1
                text = fields.get("grpc-message", "")
                expect(code not in (2, 13), f"{self._path} answered {code} {text} to {sent[stream][:300]!r}")
                del sent[stream]
        if taken:
            self._socket.sendall(frames.frame(frames.WINDOW_UPDATE, 0, taken.to_bytes(4)))

    def _frame(self) -> tuple[int, int, int, bytes]:
        while len(self._received) < 9 or len(self._received) < 9 + int.from_bytes(self._received[:3]):
            more = self._socket.recv(1 << 16)
            expect(more, "the connection ended")
            self._received += more
        size = 9 + int.from_bytes(self._received[:3])
        found, self._received = self._received[:size], self._received[size:]
        return found[3], found[4], int.from_bytes(found[5:9]), found[9:]


def _examples_model(target: Target) -> None:
    """Puts a model over examples beside the others: who asks these for it is told so before an example is read."""
    model = target.folder.parent / "models" / _EXAMPLES
    if not model.exists():
        publish_regressor(model)
    served(target.server, _EXAMPLES, 1, "the model over examples")


def _rest_case(
    title: str, path: str, make: Callable[[Any], bytes], *, packed: bool = False, examples: bool = False
) -> None:
    @case("malformed", title, transports=_BOTH, at_capacity=True)
    def run(target: Target) -> Result:
        if examples:
            _examples_model(target)
        with closing(_Rest(target, path, *(["content-encoding: gzip"] if packed else []))) as rest:
            sent = drawn(make, target.count(10, 0) + 0.1, rest.send)
        expect(rest.statuses[200] or not examples, f"of {sent} none was answered")
        return Result(inputs=sent, text=_told(rest.statuses))


def _grpc_case(title: str, path: str, make: Callable[[Any], bytes], *, examples: bool = False) -> None:
    @case("malformed", title, at_capacity=True)
    def run(target: Target) -> Result:
        if examples:
            _examples_model(target)
        with closing(_Grpc(target, path)) as grpc:
            sent = drawn(make, target.count(10, 0) + 0.1, grpc.send)
        expect(grpc.codes[0] or not examples, f"of {sent} none was answered")
        return Result(inputs=sent, text=_told(grpc.codes))


def _told(counts: Counter[int]) -> str:
    return ", ".join(f"{code}: {count:,}" for code, count in sorted(counts.items()))


_V1 = "/v1/models/victim"
_rest_case("REST JSON, predict", f"{_V1}:predict", _v1)
_rest_case("REST JSON, classify", f"{_V1}:classify", _v1)
_rest_case("REST JSON, regress with examples", f"/v1/models/{_EXAMPLES}:regress", _regress_json, examples=True)
_rest_case("v2 JSON", "/v2/models/victim/infer", lambda draw: _dumped(_v2_document(draw)))
_rest_case("v2 index and load", "/v2/repository/index", lambda draw: _dumped(draw(_JSON)))
_rest_case("gzip of REST JSON", f"{_V1}:predict", lambda draw: gzip.compress(_v1(draw), 1), packed=True)
_grpc_case("Predict's protobuf and TensorProtos", frames.PREDICT, _predict)
_grpc_case("Classify's protobuf", "/tensorflow.serving.PredictionService/Classify", _classify)
_grpc_case("Regress's protobuf with examples", "/tensorflow.serving.PredictionService/Regress", _regress, examples=True)
_grpc_case("ModelInfer's protobuf", "/inference.GRPCInferenceService/ModelInfer", _infer)


@case("malformed", "v2 binary tensors", transports=_BOTH, at_capacity=True)
def v2_binary(target: Target) -> Result:
    """JSON, tensors behind it, and a header that says where one ends."""
    rest, rng = _Rest(target, "/v2/models/victim/infer"), random.Random(25)

    def make(draw: Any) -> bytes:
        return _dumped(_v2_document(draw)) + draw(st.binary(max_size=16))

    def send(bodies: Sequence[bytes]) -> None:
        sizes = [rng.choice([body.rfind(b"}") + 1, rng.randrange(len(body) + 2), -1, 10**30]) for body in bodies]
        rest.send(bodies, [f"inference-header-content-length: {size}\r\n" for size in sizes])

    with closing(rest):
        sent = drawn(make, target.count(10, 0) + 0.1, send)
    return Result(inputs=sent, text=_told(rest.statuses))
