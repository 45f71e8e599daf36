"""Wire abuse over HTTP/2: frames, windows and streams that no honest client sends."""

from __future__ import annotations

import gzip
import itertools
import socket
import time

import psutil

from benchmarks.torture import frames
from benchmarks.torture.cases import Result, Target, case, expect
from benchmarks.torture.frames import INFER_STREAM, PREDICT, data, flood, frame, head, message, wire
from modelyard.wire import inference_pb2, serving_pb2, tensorflow_pb2

_BOTH = ("native", "python")


@case("wire", "idle connections", transports=_BOTH, short=False)
def idle_connections(target: Target) -> Result:
    """Connections that say nothing, half of them to each port."""
    count = target.count(5000, 400)
    ports = (target.server.grpc_port, target.server.rest_port)
    crowd = [socket.create_connection(("127.0.0.1", ports[number % 2]), timeout=20) for number in range(count)]
    time.sleep(target.count(5, 0))
    for each in crowd:
        each.close()
    return Result(inputs=count)


#: More than a connection may have; the others are refused.
_MANY = 1000
#: Frames with their number, the streams that are asked for, and whether the tests have them.
_FLOODS: dict[str, tuple[bytes, int, int, bool]] = {
    "WINDOW_UPDATE of a connection, 1,000 streams asked for": (frame(8, 0, b"\0\0\0\1") * 4000, 4000, _MANY, False),
    "WINDOW_UPDATE of a stream, 1,000 asked for": (frame(8, 0, b"\0\0\0\1", stream=1) * 4000, 4000, _MANY, True),
    "SETTINGS": (frame(4, 0) * 4000, 4000, 0, False),
    "SETTINGS of windows, 1,000 streams asked for": (
        (frame(4, 0, b"\0\4\0\0\xff\xfe") + frame(4, 0, b"\0\4\0\0\xff\xff")) * 2000, 4000, _MANY, True,
    ),
    "SETTINGS of 2,730 windows each": (frame(4, 0, b"\0\4\0\0\xff\xfe" * 2730) * 4, 4, _MANY, False),
    "SETTINGS of table sizes": (frame(4, 0, b"\0\1\0\0\0\0") * 4000, 4000, 0, False),
    "PING": (frame(6, 0, b"12345678") * 4000, 4000, 0, True),
    "PRIORITY": (frame(2, 0, b"\0\0\0\0\7", stream=9) * 4000, 4000, 0, False),
    "frames of unknown types": (frame(0x5A, 0) * 4000, 4000, 0, False),
    "CONTINUATION without an end": (
        frame(1, 0, stream=1) + frame(9, 0, stream=1) * 4000, 4000, 0, True,
    ),
    "RST_STREAM of a stream that has ended": (
        head(1, PREDICT) + frame(3, 0, b"\0\0\0\7", stream=1) * 4000, 4000, 0, False,
    ),
}  # fmt: skip


#: No connection may flood the server for so many seconds.
_ENDED_S = 10.0


def _flood_case(title: str, chunk: bytes, each: int, streams: int, short: bool) -> None:
    """Registers a flood of one frame on four connections, which come back when they are ended for it."""

    @case("wire", title, short=short)
    def run(target: Target) -> Result:
        end, connections = time.monotonic() + (0.3 if target.short else 4.0), itertools.count()

        def attack() -> int:
            sent = 0
            while time.monotonic() < end:
                next(connections)
                with wire(target.server.grpc_port) as connection:
                    for number in range(streams):
                        connection.send(head(2 * number + 1, PREDICT))
                    sent += flood(connection, chunk, each, _ENDED_S)
                    expect(connection.closed, f"{sent:,} frames, and the server has not ended the connection")
            return sent

        return Result(inputs=frames.crowd(4, attack), figures={"connections": next(connections)})


for _title, _flood in _FLOODS.items():
    _flood_case(_title, *_flood)


def _infer(model: str = "victim", rows: int = 1) -> bytes:
    request = inference_pb2.ModelInferRequest(model_name=model)
    tensor = request.inputs.add(name="x", datatype="FP32", shape=[rows])
    tensor.contents.fp32_contents.extend([1.0] * rows)
    return request.SerializeToString()


def _predict(rows: int = 1, *, zeros: int = 0) -> bytes:
    request = serving_pb2.PredictRequest()
    request.model_spec.name = "victim"
    tensor = request.inputs["x"]
    tensor.dtype = tensorflow_pb2.DT_FLOAT
    tensor.tensor_shape.dim.add(size=rows)
    tensor.tensor_content = b"\0" * (4 * rows + zeros)
    return request.SerializeToString()


def _peak_mb(target: Target, since: float) -> float:
    """How much more memory the server has than it had; without its children, whose search would slow an attack down."""
    return psutil.Process(target.server.process.pid).memory_info().rss / 1e6 - since


def _stuffed(target: Target, one: bytes, total: int) -> Result:
    """Sends frames on streams whose handlers have stopped taking, for nobody reads what they answer."""
    before, most = _peak_mb(target, 0), 0.0
    with wire(target.server.grpc_port, reads=False, settings=b"\0\4\0\0\0\0") as connection:
        connection.send(head(1, INFER_STREAM) + data(1, message(_infer()) * 3000))
        time.sleep(0.3)
        sent = 0
        while sent < total and connection.send(one * 4000):
            sent += 4000
            most = max(most, _peak_mb(target, before))
        time.sleep(0.2)
        most = max(most, _peak_mb(target, before))
    expect(most < 200, f"{sent:,} frames took {most:.0f} MB")
    return Result(inputs=sent, figures={"MB_at_most": most})


@case("wire", "DATA of one byte on a stream that is not read")
def one_byte(target: Target) -> Result:
    """4 MB of window, byte by byte."""
    return _stuffed(target, data(1, b"\0"), 1_000_000)


@case("wire", "DATA of no bytes on a stream that is not read")
def no_bytes(target: Target) -> Result:
    """No window holds them back."""
    return _stuffed(target, data(1, b""), 3_000_000)


@case("wire", "DATA of no bytes before a message", short=False)
def no_bytes_first(target: Target) -> Result:
    """They are read, and mean nothing."""
    with wire(target.server.grpc_port) as connection:
        connection.send(head(1, PREDICT))
        sent = flood(connection, data(1, b"") * 4000, 4000, 0.3 if target.short else 3.0)
    return Result(inputs=sent)


@case("wire", "a message that comes byte by byte", short=False)
def byte_by_byte(target: Target) -> Result:
    """1 MB of a unary call in frames of one byte, on each of four connections."""

    def attack() -> int:
        with wire(target.server.grpc_port) as connection:
            connection.send(head(1, PREDICT) + data(1, b"\0" + (1 << 20).to_bytes(4)))
            return flood(connection, data(1, b"a") * 4000, 4000, 0.3 if target.short else 3.0)

    return Result(inputs=frames.crowd(4, attack))


@case("wire", "empty messages on a stream")
def empty_messages(target: Target) -> Result:
    """Each asks Python, and is refused."""
    count = target.count(200_000, 10_000)
    with wire(target.server.grpc_port) as connection:
        connection.send(head(1, INFER_STREAM))
        sent = 0
        while sent < count and connection.send(data(1, message(b"") * 3000)):
            sent += 3000
    return Result(inputs=sent)


@case("wire", "rapid reset")
def rapid_reset(target: Target) -> Result:
    """Calls that are taken back at once, whole or only begun."""

    def attack() -> int:
        sent = 0
        end = time.monotonic() + (0.3 if target.short else 4.0)
        while time.monotonic() < end:
            with wire(target.server.grpc_port) as connection:
                stream = 1
                body = message(_predict())
                while time.monotonic() < end and not connection.closed:
                    chunk = b""
                    for number in range(100):
                        end_it = frame(3, 0, b"\0\0\0\x08", stream=stream)
                        chunk += head(stream, PREDICT) + (data(stream, body, end=True) if number % 2 else b"") + end_it
                        stream += 2
                    if not connection.send(chunk):
                        break
                    sent += 100
        return sent

    return Result(inputs=frames.crowd(2, attack))


@case("wire", "an answer of 20 MB whose window opens byte by byte")
def window_by_byte(target: Target) -> Result:
    """The server sends a frame for each byte that it may."""
    rows = target.count(5_000_000, 500_000)
    with wire(target.server.grpc_port, settings=b"\0\4\0\0\0\0") as connection:
        connection.send(head(1, PREDICT) + data(1, message(_predict(rows)), end=True))
        time.sleep(0.2)
        sent = flood(connection, frame(8, 0, b"\0\0\0\1", stream=1) * 4000, 4000, 0.3 if target.short else 4.0)
    return Result(inputs=sent)


@case("wire", "answers that are not read")
def unread_answers(target: Target) -> Result:
    """Calls with answers of 1 MB each, on connections whose client reads nothing."""
    count, before = target.count(100, 10), _peak_mb(target, 0)
    call = head(1, PREDICT) + data(1, message(_predict(250_000)), end=True)
    connections = []
    for _ in range(count):
        connection = frames.Wire(target.server.grpc_port, reads=False, settings=b"\0\4\0\0\0\0")
        connections.append(connection)
        connection.send(call)
    time.sleep(1)
    most = _peak_mb(target, before)
    for connection in connections:
        connection.close()
    return Result(inputs=count, figures={"MB_at_most": most, "MB_asked_for": count * len(call) / 1e6})


@case("wire", "gzip over gRPC that grows a thousandfold")
def gzip_over_grpc(target: Target) -> Result:
    """Calls of 100 kB that become 100 MB each, more than the message may have with what else is in flight."""
    packed = gzip.compress(_predict(1, zeros=target.count(1_000_000_000, 50_000_000)), 9)
    before, most = _peak_mb(target, 0), 0.0

    def attack() -> int:
        nonlocal most
        with wire(target.server.grpc_port) as connection:
            call = head(1, PREDICT, ("grpc-encoding", "gzip"))
            connection.send(call + data(1, message(packed, compressed=True), end=True))
            end = time.monotonic() + 15
            while connection.received < 150 and time.monotonic() < end:
                most = max(most, _peak_mb(target, before))
                time.sleep(0.02)
        return 1

    return Result(inputs=frames.crowd(4, attack), figures={"MB_at_most": most, "kB_sent_each": len(packed) / 1e3})


@case("wire", "heads that fill memory")
def hoarded_heads(target: Target) -> Result:
    """1,000 calls of 30 kB of metadata each on some connections, none of which has a body."""
    before, most, sent = _peak_mb(target, 0), 0.0, 0
    connections = []
    for _ in range(target.count(20, 2)):
        connection = frames.Wire(target.server.grpc_port)
        connections.append(connection)
        for number in range(1000):
            fields = head(2 * number + 1, INFER_STREAM, ("x-padding", "a" * 16_000))
            if not connection.send(fields):
                break
            sent += 1
        most = max(most, _peak_mb(target, before))
    for connection in connections:
        connection.close()
    return Result(inputs=sent, figures={"MB_at_most": most, "MB_sent": sent * 16e3 / 1e6})
