"""Compressed bodies are inflated in turns, to their end or a limit."""

from __future__ import annotations

import gzip
import random
import zlib

import pytest

from modelyard.errors import InvalidRequestError, RequestTooLargeError
from modelyard.serving.handlers.rest import decompress
from modelyard.serving.handlers.rest._inflate import inflate

GZIP = zlib.MAX_WBITS | 16
#: As much compressed as plain, for several turns; and what becomes a thousand times as much.
BODIES = [random.Random(4).randbytes(50_000), b"7" * 5_000_000, b""]


@pytest.mark.parametrize("body", BODIES, ids=["noise", "one digit", "nothing"])
def test_a_body_comes_whole(body: bytes) -> None:
    packed = gzip.compress(body)
    assert inflate(packed, wbits=GZIP, limit=len(body)) == (body, True)
    assert inflate(packed + b"what follows", wbits=GZIP, limit=1 << 30) == (body, True)
    assert inflate(zlib.compress(body), wbits=zlib.MAX_WBITS, limit=1 << 30) == (body, True)


@pytest.mark.parametrize("body", BODIES[:2], ids=["noise", "one digit"])
def test_it_stops_behind_its_limit(body: bytes) -> None:
    assert inflate(gzip.compress(body), wbits=GZIP, limit=10_000) == (body[:10_001], False)


def test_a_body_that_ends_too_early_is_not_whole() -> None:
    data, whole = inflate(gzip.compress(BODIES[0])[:-9], wbits=GZIP, limit=1 << 30)
    assert not whole and BODIES[0].startswith(data)
    assert inflate(b"", wbits=GZIP, limit=1) == (b"", False)


def test_what_is_in_another_format_is_refused() -> None:
    with pytest.raises(zlib.error):
        inflate(b"plain text", wbits=GZIP, limit=100)


def test_a_body_that_is_not_packed() -> None:
    assert decompress(BODIES[0], " Identity ", limit=1) == BODIES[0]


def test_the_limit_holds_for_what_comes_out() -> None:
    with pytest.raises(RequestTooLargeError, match="more than 6999 bytes"):
        decompress(gzip.compress(BODIES[0], mtime=0), "gzip", limit=6999)


@pytest.mark.parametrize(
    ("body", "encoding", "fragment"),
    [
        (BODIES[0], "gzip", "not in the gzip format"),
        (gzip.compress(BODIES[0], mtime=0)[:-1], "gzip", "ends too early"),
        (BODIES[0], "br", "'br' is not supported; expected gzip or deflate"),
    ],
)
def test_bad_bodies(body: bytes, encoding: str, fragment: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        decompress(body, encoding, limit=1 << 20)
    assert fragment in caught.value.message
