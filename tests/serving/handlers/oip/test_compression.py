"""gzip and deflate, there and back, and what is refused."""

from __future__ import annotations

import gzip
import zlib

import pytest

from modelyard.errors import InvalidRequestError, RequestTooLargeError
from modelyard.serving.handlers.oip._compression import Encoding, compress, decompress, preferred_encoding

BODY = b"tensor " * 1000


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_round_trip(encoding: Encoding) -> None:
    packed = compress(BODY, encoding)
    assert len(packed) < len(BODY) / 10
    assert decompress(packed, encoding, limit=len(BODY)) == BODY


def test_the_formats_are_those_of_the_standard_library() -> None:
    assert gzip.decompress(compress(BODY, "gzip")) == BODY
    assert zlib.decompress(compress(BODY, "deflate")) == BODY
    assert decompress(BODY, " Identity ", limit=1) == BODY


def test_the_limit_holds_for_what_comes_out() -> None:
    with pytest.raises(RequestTooLargeError, match="more than 6999 bytes"):
        decompress(gzip.compress(BODY, mtime=0), "gzip", limit=6999)


@pytest.mark.parametrize(
    ("body", "encoding", "fragment"),
    [
        (BODY, "gzip", "not in the gzip format"),
        (gzip.compress(BODY, mtime=0)[:-1], "gzip", "ends too early"),
        (BODY, "br", "'br' is not supported; expected gzip or deflate"),
    ],
)
def test_bad_bodies(body: bytes, encoding: str, fragment: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        decompress(body, encoding, limit=1 << 20)
    assert fragment in caught.value.message


@pytest.mark.parametrize(
    ("accepted", "encoding"),
    [
        ("", None),
        ("gzip, deflate, br", "gzip"),
        ("deflate", "deflate"),
        ("GZIP;q=0.5, deflate;q=0.6", "deflate"),
        ("gzip;q=0", None),
        ("gzip;q=nonsense", None),
        ("identity, *;q=0", None),
    ],
)
def test_preferred_encoding(accepted: str, encoding: str | None) -> None:
    assert preferred_encoding(accepted) == encoding
