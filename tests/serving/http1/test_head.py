"""Heads and chunks: what is read, and what is refused because another server might read it otherwise."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from modelyard.serving.http1._chunks import Chunks
from modelyard.serving.http1._head import MAX_HEAD_BYTES, MAX_HEADERS, BadRequest, key_of, read_head


def head(*lines: str, start: str = "POST /a%20b?c=d HTTP/1.1") -> bytes:
    return "\r\n".join([start, "Host: x", *lines, "", ""]).encode("latin-1")


def test_what_a_head_says() -> None:
    result = read_head(head("Content-Length: 12", "X-A: 1", "x-a:  2 ", "Expect: 100-Continue"))
    assert (result.method, result.path, result.query, result.length) == ("POST", "/a%20b", "c=d", 12)
    assert (result.keep_alive, result.expects) == (True, True)
    assert result.texts == {"host": "x", "x-a": "1, 2", "expect": "100-Continue"}


@pytest.mark.parametrize(
    ("lines", "length"),
    [
        (["Content-Length: 3", "X-Request-Id: abc"], 3),
        (["content-length:14", "x-request-id: another"], 14),
        (["CONTENT-LENGTH:  007", "X-REQUEST-ID:"], 7),
    ],
)
def test_requests_that_differ_in_their_length_and_id_are_alike(lines: list[str], length: int) -> None:
    key, size = key_of(head("X-A: 1", *lines, "Accept: */*"))
    assert (key, size) == (key_of(head("X-A: 1", "Content-Length: 2", "X-Request-Id: 1", "Accept: */*"))[0], length)
    assert read_head(head("X-A: 1", *lines, "Accept: */*")).texts == {"host": "x", "x-a": "1", "accept": "*/*"}


LINES = [
    "Content-Length: 1", "content-length: 22", "Content-Length: 3 ", "Content-Length: +4", "Content-Length: 1, 1",
    "Content-Length : 5", "X-Content-Length: 6", "Content-Length: 9999999999999999999999", "Content-Length:",
    "Transfer-Encoding: chunked", "x-request-id: a", "X-Request-Id: b", "X-Request-Id", "x-request-id: a\0b",
    "traceparent: 00-1", "tracestate: a=b", " folded", "\tContent-Length: 7", "X: 1", "Connection: close",
    "X: a\nContent-Length: 8", "X: a\rContent-Length: 9", "", "Host: y", "Expect: 100-continue", "x-request-id: \xe4",
]  # fmt: skip


def read(data: bytes) -> tuple[object, ...] | None:
    try:
        result = read_head(data)
    except BadRequest:
        return None
    return result.method, result.path, result.query, result.headers, result.keep_alive, result.expects, result.length


@settings(deadline=None, max_examples=1000, suppress_health_check=[HealthCheck.filter_too_much])
@given(known=st.lists(st.sampled_from(LINES), min_size=1, max_size=4), data=st.data())
def test_heads_of_one_key_say_the_same(known: list[str], data: st.DataObject) -> None:
    """Else who knows one of them could smuggle another past this server."""
    # Lines of the same place differ: else no two heads would have one key.
    other = [line if data.draw(st.booleans()) else data.draw(st.sampled_from(LINES)) for line in known]
    assume(other != known)
    agree(head(*known), head(*other))


def agree(known: bytes, other: bytes) -> bool:
    """Whether both heads have one key; the second then says what the first does, which may be kept."""
    (key, length), said = key_of(known), read(known)
    if said is None:
        # It is never kept.
        return False
    assert length in (None, said[-1])
    other_key, other_length = key_of(other)
    if other_key != key:
        return False
    other_said = read(other)
    assert other_said is not None
    assert other_said[:-1] == said[:-1]
    assert other_said[-1] == (said[-1] if other_length is None else other_length)
    return True


def test_heads_of_one_key() -> None:
    """All pairs of two lines each, so that what the property says is seen of many."""
    pairs = list(itertools.product(LINES, repeat=2))
    heads: dict[object, list[bytes]] = {}
    for lines in pairs:
        data = head(*lines)
        heads.setdefault(key_of(data)[0], []).append(data)
    same = [pair for alike in heads.values() for pair in itertools.permutations(alike, 2)]
    assert sum(agree(*pair) for pair in same) > 100


@pytest.mark.parametrize(
    ("known", "other"),
    [
        (["Content-Length: 1"], ["X-Request-Id: 1"]),
        (["X-Request-Id: 1"], ["Content-Length: 1"]),
        (["Content-Length: 1"], ["Content-Length : 1"]),
        (["X-Request-Id: a", "Tracestate: b"], ["X-Request-Id: a\x7f", "Tracestate: b\x0b"]),
        (["X-Request-Id: a"], ["X-Request-Id: a\0"]),
        (["Content-Length: 1", "X-Request-Id: a", " b"], ["X-Request-Id: a", "Content-Length: 1", " b"]),
        (["Content-Length: 1"], ["X-Content-Length: 1"]),
        (["Content-Length: 1", "Content-Length: 2"], ["Content-Length: 3", "Content-Length: 4"]),
        (["Content-Length: 1"], ["Content-Length: 1", "Content-Length: 1"]),
    ],
)
def test_heads_that_must_not_have_one_key(known: list[str], other: list[str]) -> None:
    assert key_of(head(*known))[0] != key_of(head(*other))[0]


@pytest.mark.parametrize(
    ("data", "length", "keep_alive"),
    [
        (head("Transfer-Encoding: Chunked"), None, True),
        (head(), 0, True),
        (head("Connection: close"), 0, False),
        (head("Connection: x, Close"), 0, False),
        (head(start="GET / HTTP/1.0"), 0, False),
        (head("Connection: keep-alive", start="GET / HTTP/1.0"), 0, False),
        (head("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "Content-Length: 3"), 3, True),
        (head(start="GET http://other.example/p HTTP/1.1"), 0, True),
    ],
)
def test_bodies_and_connections(data: bytes, length: int | None, keep_alive: bool) -> None:
    result = read_head(data)
    assert (result.length, result.keep_alive) == (length, keep_alive)


@pytest.mark.parametrize(
    "data",
    [
        head("Content-Length: 1", "Transfer-Encoding: chunked"),
        head("Transfer-Encoding: chunked", "Content-Length: 1"),
        head("Content-Length: 1", "Content-Length: 1"),
        head("Content-Length: 1", "Content-Length: 2"),
        head("Content-Length: 1, 1"),
        head("Content-Length: +1"),
        head("Content-Length: -1"),
        head("Content-Length: 0x1"),
        head("Content-Length: 1 1"),
        head("Content-Length:"),
        head("Content-Length: 9999999999999999999999"),
        head("Transfer-Encoding: chunked", "Transfer-Encoding: chunked"),
        head("Transfer-Encoding: gzip, chunked"),
        head("Transfer-Encoding: chunked, identity"),
        head("Transfer-Encoding: xchunked"),
        head("Transfer-Encoding : chunked"),
        head("Transfer-Encoding:\x0bchunked"),
        head("Transfer-Encoding: chunked", start="POST / HTTP/1.0"),
        head("Content-Length : 1"),
        head(" Content-Length: 1"),
        head("X: 1", "\tfolded"),
        head("X: a\nTransfer-Encoding: chunked"),
        head("X: a\rContent-Length: 1"),
        head("X: a\0b"),
        head("Host: y"),
        head("no colon"),
        head(": no name"),
        head("bad name: 1"),
        head(start="POST / HTTP/2.0"),
        head(start="POST / HTTP/1.1 x"),
        head(start="POST /a b HTTP/1.1"),
        head(start="POST"),
        head(start="P(ST / HTTP/1.1"),
        head(start="CONNECT x:1 HTTP/1.1"),
        b"GET / HTTP/1.1\nHost: x\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\n\nGET /b HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
    ],
    ids=repr,
)
def test_what_is_not_certain_is_refused(data: bytes) -> None:
    with pytest.raises(BadRequest) as refusal:
        read_head(data)
    assert refusal.value.status == 400
    assert key_of(data)[0] != key_of(head("Content-Length: 1"))[0]


def test_limits() -> None:
    read_head(head(*(f"X-{number}: 1" for number in range(MAX_HEADERS - 1))))
    with pytest.raises(BadRequest) as refusal:
        read_head(head(*(f"X-{number}: 1" for number in range(MAX_HEADERS))))
    assert refusal.value.status == 431
    for name in ("X", "X-Request-Id"):
        with pytest.raises(BadRequest) as refusal:
            key_of(head(f"{name}: {'a' * MAX_HEAD_BYTES}"))
        assert refusal.value.status == 431


@pytest.mark.parametrize("step", [1, 2, 3, 7, 100])
@pytest.mark.parametrize(
    ("data", "body"),
    [
        (b"0\r\n\r\n", b""),
        (b"3\r\nabc\r\n0\r\n\r\n", b"abc"),
        (b"3;x=y; z\r\na\r\n\r\n00A\r\n0123456789\r\n0\r\n\r\n", b"a\r\n0123456789"),
        (b"1\r\na\r\n000\r\nX: 1\r\nY:\r\n\r\n", b"a"),
    ],
)
def test_chunks_come_in_any_pieces(data: bytes, body: bytes, step: int) -> None:
    chunks, stream = Chunks(), data + b"GET /"
    rest = None
    at = 0
    while rest is None:
        assert at < len(stream)
        rest = chunks.feed(stream[at : at + step])
        at += step
    assert (bytes(chunks.body), rest + stream[at:]) == (body, b"GET /")


@pytest.mark.parametrize(
    "data",
    [
        b"x\r\n", b"-1\r\n", b"+1\r\n", b"0x1\r\n", b" 1\r\n", b"\r\n", b"1 1\r\n", b"1\n", b"1\r\nab\r\n", b"1\r\na\n",
        b"1\r\na\rb", b"f" * 16 + b"\r\n", b"1;" + b"a" * 300, b"1;a\0\r\n", b"0\r\nno colon\r\n", b"0\r\n a: 1\r\n",
        b"0\r\nX: 1\n\r\n", b"0\r\n" + b"X: 1\r\n" * 2000,
    ],
    ids=lambda data: repr(data[:20]),
)  # fmt: skip
def test_what_is_no_chunk(data: bytes) -> None:
    with pytest.raises(BadRequest):
        Chunks().feed(data)
