"""Wire abuse over HTTP/1.1: heads and bodies that are slow, wrong, or two things at once."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import time

from benchmarks.torture.cases import Result, Target, case, expect

_BOTH = ("native", "python")
_STATUS = re.compile(rb"HTTP/1\.1 (\d{3}) ")
_BODY = b'{"instances": [2.0]}'
_PATH = b"/v1/models/victim:predict"
_SECOND = b"GET /v2/health/live HTTP/1.1\r\nhost: x\r\n\r\n"
_LAST = _SECOND.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n")


def _connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=20)


def _post(*fields: bytes, body: bytes = _BODY, start: bytes = b"POST " + _PATH + b" HTTP/1.1") -> bytes:
    return b"\r\n".join([start, b"host: x", *fields, b"", body])


def _answers(port: int, content: bytes, *, wait_s: float = 0.4, half_close: bool = False) -> tuple[list[int], bool]:
    """The statuses of what comes back until nothing more does, and whether the server has ended the connection."""
    received, ended = b"", False
    with _connect(port) as connection:
        with contextlib.suppress(OSError):
            connection.sendall(content)
            if half_close:
                connection.shutdown(socket.SHUT_WR)
        connection.settimeout(wait_s)
        with contextlib.suppress(TimeoutError, ConnectionError):
            while more := connection.recv(1 << 16):
                received += more
            ended = True
    return [int(status) for status in _STATUS.findall(received)], ended


_LENGTH = b"content-length: %d" % len(_BODY)
_CHUNKED = b"transfer-encoding: chunked"
#: Requests of which two servers may disagree where they end, each followed by another one.
_PAIRS: dict[str, bytes] = {
    "both lengths": _post(_LENGTH, _CHUNKED, body=b"0\r\n\r\n"),
    "both lengths, other order": _post(_CHUNKED, b"content-length: 5", body=b"0\r\n\r\n"),
    "two lengths": _post(_LENGTH, b"content-length: 5"),
    "two lengths in one field": _post(_LENGTH + b", 5"),
    "a length with a sign": _post(b"content-length: +%d" % len(_BODY)),
    "a negative length": _post(b"content-length: -1"),
    "a length in base 16": _post(b"content-length: 0x14"),
    "a length of 5,000 digits": _post(b"content-length: " + b"1" * 5000),
    "chunked and something": _post(b"transfer-encoding: chunked, identity", body=b"0\r\n\r\n"),
    "something that ends like chunked": _post(b"transfer-encoding: xchunked", body=b"0\r\n\r\n"),
    "a tab before chunked": _post(b"transfer-encoding:\x0bchunked", body=b"0\r\n\r\n"),
    "a blank before the colon": _post(b"content-length : %d" % len(_BODY)),
    "a chunk's size with a sign": _post(_CHUNKED, body=b"-1\r\na\r\n0\r\n\r\n"),
    "a chunk's size beyond 64 bits": _post(_CHUNKED, body=b"10000000000000005\r\nabcde\r\n0\r\n\r\n"),
    "a chunk that is longer": _post(_CHUNKED, body=b"1\r\nabc\r\n0\r\n\r\n"),
    "a folded field": _post(b"x: a\r\n b", _LENGTH),
    "a NUL in a field": _post(b"x: a\0b", _LENGTH),
    "a CR in a field": _post(b"x: a\rtransfer-encoding: chunked", _LENGTH),
    "a name with a blank": _post(b"x y: a", _LENGTH),
    "two blanks in the line": _post(_LENGTH, start=b"POST  " + _PATH + b" HTTP/1.1"),
    "another version": _post(_LENGTH, start=b"POST " + _PATH + b" HTTP/1.2"),
    "HTTP/1.0 and chunked": _post(_CHUNKED, body=b"0\r\n\r\n", start=b"POST " + _PATH + b" HTTP/1.0"),
    "no host": b"POST " + _PATH + b" HTTP/1.1\r\n" + _LENGTH + b"\r\n\r\n" + _BODY,
    "two hosts": _post(b"host: y", _LENGTH),
}  # fmt: skip


#: By transport those that are read as they were meant; all others are refused.
_READ = {"native": {"no host"}, "python": {"no host", "two blanks in the line"}}


@case("wire", "smuggling pairs", transports=_BOTH)
def smuggling(target: Target) -> Result:
    """What is refused ends its connection: nothing behind it is taken for a request."""
    bad = []
    for name, content in _PAIRS.items():
        read = name in _READ[target.transport]
        found = _answers(target.server.rest_port, content + (_LAST if read else _SECOND), wait_s=20)
        if found != ([200, 200] if read else [400], True):
            bad.append(f"{name}: {found}")
    expect(not bad, "; ".join(bad))
    return Result(inputs=len(_PAIRS))


@case("wire", "pipelined requests", transports=_BOTH, at_capacity=True)
def pipelined(target: Target) -> Result:
    """All are answered, in their order."""
    count = target.count(20_000, 1000)
    requests = [_post(_LENGTH) if number % 3 else _SECOND for number in range(100)]
    statuses = []
    with _connect(target.server.rest_port) as connection:
        for _ in range(count // 100):
            connection.sendall(b"".join(requests))
            received = b""
            while len(_STATUS.findall(received)) < 100:
                more = connection.recv(1 << 16)
                expect(more, "the connection ended")
                received += more
            statuses += _STATUS.findall(received)
    expect(set(statuses) == {b"200"}, f"answered {set(statuses)}")
    return Result(inputs=count)


@case("wire", "half-closed connections", transports=_BOTH)
def half_closed(target: Target) -> Result:
    """Clients that send no more: the connection ends, with the answer to a whole request or without one."""
    count = target.count(200, 6)
    for number in range(count):
        content, answer = (_post(_LENGTH), [200]) if number % 2 else (_post(_LENGTH)[:-5], [499])
        statuses, ended = _answers(target.server.rest_port, content, wait_s=20, half_close=True)
        expect(statuses in (answer, []) and ended, f"answered {statuses}, {ended=}")
    return Result(inputs=count)


@case("wire", "noise and TLS to ports that speak neither", transports=_BOTH)
def noise(target: Target) -> Result:
    """Random bytes, and a TLS ClientHello with random bytes behind it, to both ports."""
    count = target.count(400, 30)
    for number in range(count):
        port = (target.server.rest_port, target.server.grpc_port)[number % 2]
        start = (b"", b"\x16\x03\x01\x02\x00\x01\x00", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"GET / ")[number // 2 % 4]
        statuses, _ = _answers(port, start + os.urandom(2000), wait_s=0.02)
        expect(all(status < 500 for status in statuses), f"answered {statuses}")
    return Result(inputs=count)


def _trickle(target: Target, start: bytes, drops: bytes) -> Result:
    """Connections that send a start, and then a byte each now and then."""
    count = target.count(1000, 100)
    crowd = [_connect(target.server.rest_port) for _ in range(count)]
    for each in crowd:
        each.sendall(start)
    end, sent = time.monotonic() + target.count(4, 0) + 0.5, count
    while time.monotonic() < end:
        for each in crowd:
            with contextlib.suppress(OSError):
                each.send(drops)
                sent += 1
        time.sleep(0.05)
    for each in crowd:
        each.close()
    return Result(inputs=sent)


@case("wire", "heads that come byte by byte", transports=_BOTH, short=False)
def slow_heads(target: Target) -> Result:
    """A thousand at once."""
    return _trickle(target, b"POST / HTTP/1.1\r\nhost: x\r\nx: ", b"a")


@case("wire", "bodies that come byte by byte", transports=_BOTH, short=False)
def slow_bodies(target: Target) -> Result:
    """A thousand at once."""
    return _trickle(target, _post(b"content-length: 100000", body=b""), b"1")


@case("wire", "chunks of one byte", transports=_BOTH)
def chunks(target: Target) -> Result:
    """A body of half a megabyte, each byte in a chunk of its own."""
    size = target.count(500_000, 50_000)
    body = b"1\r\n[\r\n" + b"1\r\n1\r\n" * size + b"0\r\n\r\n"
    statuses, _ = _answers(target.server.rest_port, _post(_CHUNKED, body=body), wait_s=15)
    expect(statuses and statuses[0] == 400, f"answered {statuses}")
    return Result(inputs=size)


@case("wire", "a page elsewhere that asks for an unload", transports=_BOTH)
def foreign_origin(target: Target) -> Result:
    """A browser sends such a POST without asking: it must be refused."""
    headers = {"Origin": "https://elsewhere.example", "Content-Type": "text/plain"}
    status, text = target.server.post("/v2/repository/models/victim/unload", b"{}", headers)
    expect(status == 403, f"answered {status} {text[:200]}")
    return Result(inputs=1)
