"""Header compression: the vectors of RFC 7541, and what must not be believed."""

from __future__ import annotations

from fractions import Fraction

import pytest

from modelyard.clients.http import decode_fields as decode
from modelyard.clients.http import encode_fields as encode
from modelyard.errors import ProtocolError
from modelyard.wire.hpack import STATIC_TABLE, huffman_codes

#: From the RFC's appendix C.
HUFFMAN = {
    "www.example.com": "f1e3c2e5f23a6ba0ab90f4ff",
    "no-cache": "a8eb10649cbf",
    "302": "6402",
    "private": "aec3771a4b",
    "Mon, 21 Oct 2013 20:13:21 GMT": "d07abe941054d444a8200595040b8166e082a62d1bff",
    "https://www.example.com": "9d29ad171863c78f0b97c8e9ae82ae43d3",
    "foo=ASDJKHQKBZXOQWEOPIUAXQWEOIU; max-age=3600; version=1": "94e7821dd7f2e6c7b335dfdfcd5b3960d5af27087f3672c1ab2"
    "70fb5291f9587316065c003ed4ee5b1063d5007",
}


@pytest.mark.parametrize("text", HUFFMAN)
def test_texts_of_the_rfc(text: str) -> None:
    raw = bytes.fromhex(HUFFMAN[text])
    assert decode(b"\x00\x01a" + bytes([0x80 | len(raw)]) + raw) == (("a", text),)


def test_the_code_is_complete() -> None:
    # With the end of string, which has 30 bits, the codes fill the space exactly: no length is wrong.
    assert sum(Fraction(1, 2**length) for length, _ in huffman_codes()) + Fraction(1, 2**30) == 1
    assert sorted(huffman_codes().values()) == list(range(256))


def test_a_request_of_the_rfc() -> None:
    block = bytes.fromhex("828684410f7777772e6578616d706c652e636f6d")
    assert decode(block) == (
        (":method", "GET"), (":scheme", "http"), (":path", "/"), (":authority", "www.example.com"),
    )  # fmt: skip
    assert decode(b"\x20\x90") == (("accept-encoding", "gzip, deflate"),)
    assert decode(b"\xbd") == (("www-authenticate", ""),)


@pytest.mark.parametrize("size", [0, 1, 126, 127, 128, 254, 255, 300, 20_000])
def test_lengths(size: int) -> None:
    fields = (("x-" + "n" * size, "v" * size), ("authorization", "Bearer secret"))
    assert decode(encode(fields)) == fields
    # Never to be put into a table, by anybody on the way.
    assert encode([fields[1]])[0] & 0xF0 == 0x10


def test_the_static_table_is_used() -> None:
    fields = ((":method", "POST"), (":scheme", "https"), (":authority", "a"), ("te", "b"), ("user-agent", "c"))
    assert encode(fields).hex(" ") == "83 87 01 01 61 00 02 74 65 01 62 0f 2b 01 63"
    assert decode(encode(fields)) == fields
    for name, value in STATIC_TABLE:
        for text in (value.decode(), "another"):
            field = (name.decode(), text)
            assert decode(encode([field])) == (field,)


@pytest.mark.parametrize(
    ("block", "message"),
    [
        (b"\xbe", "header 62"),
        (b"\x80", "header 0"),
        (b"\x3f\xe1\x1f", "a table of 4096 bytes"),
        (b"\x00\x05abc", "end too early"),
        (b"\x00", "end too early"),
        (b"\x00\x01a\x82\xff\xff", "no Huffman code"),
        (b"\x00\x01a\x81\x00", "no Huffman code"),
        (b"\x00\x7f\xff\xff\xff\xff\xff\xff", "more than 32 bits"),
    ],
)
def test_what_is_refused(block: bytes, message: str) -> None:
    with pytest.raises(ProtocolError, match=message):
        decode(block)
