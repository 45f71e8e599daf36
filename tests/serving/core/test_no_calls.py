"""What looks like a gRPC call, and is none; and handshakes that do not come to an end."""

from __future__ import annotations

import gzip
import time
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from modelyard.clients.http import encode_fields
from tests.serving.core.frames import DATA, HEADERS, METHOD, PREFACE, STREAM, call_head, fields_of, frame, frames
from tests.serving.core.test_limits import connected, serving
from tests.support.certificates import self_signed
from tests.support.server import free_port
from tests.support.waiting import until


@pytest.mark.parametrize("path", [METHOD, STREAM])
@pytest.mark.parametrize("method", ["GET", "PUT"])
def test_other_methods_than_post_are_refused_at_once(path: str, method: str) -> None:
    fields = [(":method", method), (":scheme", "http"), (":path", path), ("content-type", "application/grpc")]
    with serving() as ports, connected(ports.grpc, PREFACE + frame(HEADERS, 4, encode_fields(fields))) as connection:
        ended = fields_of(connection)
        assert (ended["grpc-status"], method in ended["grpc-message"]) == ("13", True)
        assert not ports.handlers.streams
        assert ports.call(b"x") == b"x"


@pytest.mark.parametrize(("encoding", "pack"), [("gzip", gzip.compress), ("deflate", zlib.compress)])
def test_nothing_may_follow_a_compressed_message(encoding: str, pack: Callable[[bytes], bytes]) -> None:
    def call(packed: bytes) -> bytes:
        message = b"\1" + len(packed).to_bytes(4) + packed
        return PREFACE + call_head(("grpc-encoding", encoding)) + frame(DATA, 1, message)

    with serving() as ports:
        with connected(ports.grpc, call(pack(b"text"))) as connection:
            assert (DATA, b"\0\0\0\0\4text") in frames(connection, -1, HEADERS)
        for packed in (pack(b"text") + b"xx", pack(b"te") + pack(b"xt")):
            with connected(ports.grpc, call(packed)) as connection:
                ended = fields_of(connection)
                assert (ended["grpc-status"], "follow its end" in ended["grpc-message"]) == ("13", True)


def test_a_handshake_without_an_end_delays_no_stop(tmp_path: Path) -> None:
    key, certificate = self_signed(tmp_path)
    port = free_port()
    with serving() as ports:
        ports.server.listen(grpc=True, port=port, tls=(key.read_text(), certificate.read_text(), None))
        # A record of TLS that has only begun.
        with connected(port, b"\x16\x03\x01"):
            until(lambda: ports.server.connections)
            begun = time.monotonic()
            ports.server.stop(20.0)
            assert time.monotonic() - begun < 10.0
