"""gzip and deflate, there and back."""

from __future__ import annotations

import gzip
import zlib

import pytest

from modelyard.serving.handlers.oip._compression import Encoding, compress, preferred_encoding
from modelyard.serving.handlers.rest import decompress

BODY = b"tensor " * 1000


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_round_trip(encoding: Encoding) -> None:
    packed = compress(BODY, encoding)
    assert len(packed) < len(BODY) / 10
    assert decompress(packed, encoding, limit=len(BODY)) == BODY


def test_the_formats_are_those_of_the_standard_library() -> None:
    assert gzip.decompress(compress(BODY, "gzip")) == BODY
    assert zlib.decompress(compress(BODY, "deflate")) == BODY


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
