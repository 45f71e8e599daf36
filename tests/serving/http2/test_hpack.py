"""Header compression: the examples of RFC 7541's appendix C, and what is refused."""

from __future__ import annotations

import random

import pytest

from modelyard.serving.http2._frames import ConnectionFailed
from modelyard.serving.http2._hpack import Decoder, encode


def decode_all(*blocks: str) -> list[dict[bytes, bytes]]:
    decoder = Decoder(max_bytes=1 << 14)
    return [dict(decoder.decode(bytes.fromhex(block))) for block in blocks]


FIRST = {b":method": b"GET", b":scheme": b"http", b":path": b"/", b":authority": b"www.example.com"}
THIRD = {
    b":method": b"GET", b":scheme": b"https", b":path": b"/index.html", b":authority": b"www.example.com",
    b"custom-key": b"custom-value",
}  # fmt: skip


@pytest.mark.parametrize(
    "blocks",
    [
        ["828684410f7777772e6578616d706c652e636f6d", "828684be58086e6f2d6361636865",
         "828785bf400a637573746f6d2d6b65790c637573746f6d2d76616c7565"],
        ["828684418cf1e3c2e5f23a6ba0ab90f4ff", "828684be5886a8eb10649cbf",
         "828785bf408825a849e95ba97d7f8925a849e95bb8e8b4bf"],
    ],
    ids=["plain", "huffman"],
)  # fmt: skip
def test_the_standard_s_examples(blocks: list[str]) -> None:
    assert decode_all(*blocks) == [FIRST, {**FIRST, b"cache-control": b"no-cache"}, THIRD]


def test_what_is_remembered_changes_with_the_table() -> None:
    decoder = Decoder(max_bytes=1 << 14)
    indexed = b"\xbe"
    decoder.decode(b"\x40\x01a\x011")
    assert [decoder.decode(indexed) for _ in range(2)] == [((b"a", b"1"),)] * 2
    decoder.decode(b"\x40\x01b\x012")
    assert decoder.decode(indexed) == ((b"b", b"2"),)


def test_the_table_is_bounded() -> None:
    decoder = Decoder(max_bytes=1 << 14)
    for index in range(100):
        decoder.decode(b"\x40\x03%03d\x7f\x81\x01" % index + b"v" * 256)
    assert decoder._size <= 4096
    # 4096 / (3 + 256 + 32) entries are left: the next one is gone.
    decoder.decode(bytes([0x80 | 61 + 14]))
    with pytest.raises(ConnectionFailed, match="not in the table"):
        decoder.decode(bytes([0x80 | 61 + 15]))


def test_a_table_of_no_bytes_holds_nothing() -> None:
    decoder = Decoder(max_bytes=1 << 14)
    decoder.decode(b"\x40\x01a\x011")
    decoder.decode(b"\x20\x82")
    with pytest.raises(ConnectionFailed, match="not in the table"):
        decoder.decode(b"\xbe")


@pytest.mark.parametrize(
    ("block", "why"),
    [
        (b"\x80", "not in the table"),
        (b"\xff\xff\xff\xff\xff\xff\xff", "32 bits"),
        (b"\x40\x05ab", "too early"),
        (b"\x40", "too early"),
        (b"\x40\x81\xff\x011", "no Huffman code"),
        (b"\x82\x20", "resized"),
        (b"\x3f\xe2\x1f", "resized"),
        (b"\x00\x01a\x7f\x81\x7f" + b"v" * 16384, "more than 16384 bytes"),
    ],
)
def test_what_is_refused(block: bytes, why: str) -> None:
    with pytest.raises(ConnectionFailed, match=why):
        Decoder(max_bytes=1 << 14).decode(block)


def test_what_is_encoded_is_decoded() -> None:
    fields = ((b"grpc-status", b"13"), (b"grpc-message", b"x" * 300))
    assert Decoder(max_bytes=1 << 14).decode(encode(fields)) == fields


def test_blocks_that_begin_alike_are_read_as_if_they_were_the_first() -> None:
    choose = random.Random(0)
    names = [b"a", b"b", b"te", b"x-request-id"]
    decoder = Decoder(max_bytes=1 << 14)
    for _ in range(2000):
        count = choose.randint(1, 5)
        fields = tuple((choose.choice(names), b"v" * choose.randint(0, 3)) for _ in range(count))
        assert decoder.decode(b"\x82" + encode(fields)) == ((b":method", b"GET"), *fields)
    assert len(decoder._known) <= 256


def test_ids_of_calls_are_not_remembered() -> None:
    decoder = Decoder(max_bytes=1 << 14)
    common = ((b":method", b"POST"), (b":path", b"/a"), (b"te", b"trailers"))
    for number in range(100):
        fields = (*common, (b"x-request-id", b"%d" % number))
        assert decoder.decode(encode(fields)) == fields
    assert len(decoder._known) == 1
    # A table that changes makes what was read before worthless.
    decoder.decode(b"\x40\x01a\x011")
    assert decoder.decode(b"\xbe") == ((b"a", b"1"),)
    decoder.decode(b"\x40\x01b\x012")
    assert decoder.decode(b"\xbe\xbf") == ((b"b", b"2"), (b"a", b"1"))
    assert decoder.decode(b"\xbe\xbf\x82") == ((b"b", b"2"), (b"a", b"1"), (b":method", b"GET"))


def test_the_bound_holds_for_what_is_added() -> None:
    decoder = Decoder(max_bytes=100)
    decoder.decode(encode(((b"a", b"v" * 40),)))
    with pytest.raises(ConnectionFailed, match="more than 100"):
        decoder.decode(encode(((b"a", b"v" * 40), (b"b", b""))))
