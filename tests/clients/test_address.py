"""The URL forms that connect takes, and those that it refuses."""

from __future__ import annotations

import traceback
from typing import Any

import pytest

from modelyard.clients import ClientOptions, connect
from modelyard.clients.transport import parse_addresses
from modelyard.errors import ConfigurationError


@pytest.mark.parametrize(
    ("url", "normal", "protocol", "secure"),
    [
        ("grpc://localhost:8500", "grpc://localhost:8500", "grpc", False),
        ("grpc://localhost", "grpc://localhost:8500", "grpc", False),
        ("grpcs://models.example.com", "grpcs://models.example.com:443", "grpc", True),
        ("http://localhost", "http://localhost:8501", "rest", False),
        ("http://localhost:80/", "http://localhost:80", "rest", False),
        ("https://example.com/tfs/", "https://example.com:443/tfs", "rest", True),
        ("GRPC://Example.com:1", "grpc://example.com:1", "grpc", False),
        ("grpc://[::1]:8500", "grpc://[::1]:8500", "grpc", False),
        ("http://[fe80::1]", "http://[fe80::1]:8501", "rest", False),
    ],
)
def test_accepted(url: str, normal: str, protocol: str, secure: bool) -> None:
    (address,) = parse_addresses(url)
    assert (address.url, address.protocol, address.secure) == (normal, protocol, secure)


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("localhost:8500", "no scheme"),
        ("", "no scheme"),
        ("tcp://localhost:8500", "'tcp'"),
        ("http+v3://localhost", "the scheme is 'http.v3'"),
        ("grpc://", "no host"),
        ("grpc://:8500", "no host"),
        ("grpc://host:port", "[Pp]ort"),
        ("grpc://host:99999", "[Pp]ort"),
        ("grpc://host:0", "port 0"),
        ("grpc://host/path", "no path"),
        ("http://host:8501/v1/models/fashion:predict", "leave it out"),
        ("http://localhost:8501/v1", "'/v1', is the client's to add, so leave it out"),
        ("http+v2://localhost:8000/v2/", "'/v2', is the client's to add, so leave it out"),
        ("unix:/tmp/g.sock", "Unix sockets, so name a TCP port"),
        ("unix:///tmp/g.sock", "Unix sockets"),
        (None, "a URL is text"),
        (b"grpc://host", "a URL is text"),
        ([b"grpc://host"], "a URL is text"),
        ("http://host?x=1", "queries"),
        ("http://host#x", "fragments"),
        ("http://user:secret@host", "'http://...@host': user names"),
        ("http://user:p/secret@host", "'http://...@host': user names"),
        ("http://user:secret/p@host:8501", "'http://...@host:8501': user names"),
        ("http://user:secret#p@host", "'http://...@host': user names"),
        ("http://user:secret@ho\u2100st", "user names"),
        ("grpc://user/secret@host", "'grpc://...@host': user names"),
        ("user:secret@host:8501", "'...@host:8501': user names"),
        ("http://[::1", "Invalid IPv6"),
        ("grpc://models..svc:8500", "'models..svc' is no host name"),
        ("http://.local", "'.local' is no host name"),
        (f"grpc://{'a' * 64}.svc", "1 to 63 characters"),
    ],
)
def test_refused_with_the_accepted_forms(url: Any, reason: str) -> None:
    with pytest.raises(ConfigurationError, match=reason) as caught:
        connect(url)
    assert "Expected grpc://host:8500, grpcs://host:443" in caught.value.message
    assert "secret" not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("timeout_s", [0, -1, float("nan"), float("inf"), "60"])
def test_a_timeout_is_a_positive_number(timeout_s: float) -> None:
    with pytest.raises(ConfigurationError, match="timeout in seconds"):
        connect("grpc://localhost", ClientOptions(timeout_s=timeout_s))
