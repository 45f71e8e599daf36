"""Options are checked when they are made, and never show a secret."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from modelyard.clients import BalanceOptions, ClientOptions, RetryOptions, TlsOptions, connect, connect_async
from modelyard.errors import ConfigurationError


def test_secrets_are_masked() -> None:
    options = ClientOptions(
        token="s3cret-token",
        metadata={"x-api-key": "s3cret-key", "x-auth-token": "s3cret", "cookie": "s3cret", "x-team": "vision"},
        tls=TlsOptions(certificate=Path("c.pem"), key=Path("s3cret.pem")),
    )
    assert "s3cret" not in repr(options)
    assert "'vision'" in repr(options)
    assert "s3cret" not in repr(connect("grpc://localhost", ClientOptions(token="s3cret")))


@pytest.mark.parametrize(
    ("kind", "arguments", "match"),
    [
        (ClientOptions, {"timeout_s": 0}, "timeout"),
        (ClientOptions, {"timeout_s": float("inf")}, "timeout"),
        (ClientOptions, {"timeout_s": True}, "timeout"),
        (ClientOptions, {"timeout_s": 1e300}, "at most 1,000,000,000; received 1e"),
        (ClientOptions, {"timeout_s": 10**400}, "at most 1,000,000,000; received 10"),
        (RetryOptions, {"first_pause_s": float("inf")}, "first_pause_s=inf"),
        (ClientOptions, {"hedge_after_s": -1}, "hedge_after_s"),
        (ClientOptions, {"metadata_ttl_s": "60"}, "metadata_ttl_s='60'"),
        (ClientOptions, {"metadata_ttl_s": float("nan")}, "metadata_ttl_s=nan"),
        (ClientOptions, {"token": 5}, "token to be text or a function; received one of type int"),
        (ClientOptions, {"keepalive_s": "a"}, "keepalive_s"),
        (ClientOptions, {"compression": "brotli"}, "compression='gzip'"),
        (ClientOptions, {"max_connections": 0}, "max_connections=0"),
        (ClientOptions, {"max_message_bytes": 1.5}, "max_message_bytes=1.5"),
        (ClientOptions, {"metadata": {"X-Upper": "a"}}, "X-Upper"),
        (ClientOptions, {"metadata": {"x": "a\r\nb"}}, "'x'"),
        (ClientOptions, {"metadata": {"x": 3}}, "'x'"),
        (ClientOptions, {"metadata": {"x": "a "}}, "without spaces around them; received 'x'"),
        (ClientOptions, {"metadata": {"x-bin": "a"}}, "not of binary values"),
        (ClientOptions, {"metadata": [("x", "a")]}, "metadata to be a Mapping; received one of type list"),
        (ClientOptions, {"retry": 3}, "retry to be a RetryOptions; received one of type int"),
        (ClientOptions, {"balance": {}}, "balance to be a BalanceOptions"),
        (ClientOptions, {"tls": True}, "tls to be a TlsOptions"),
        (RetryOptions, {"budget": "a"}, "budget='a'"),
        (RetryOptions, {"attempts": 0}, "attempts=0"),
        (RetryOptions, {"budget": -1}, "budget=-1"),
        (BalanceOptions, {"probe_interval_s": 0}, "probe_interval_s"),
        (TlsOptions, {"key": Path("k")}, "only one of them"),
    ],
)
def test_wrong_options_say_so(kind: type[Any], arguments: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigurationError, match=match):
        kind(**arguments)


@pytest.mark.parametrize("options", [{"timeout_s": 5}, {}, 5])
@pytest.mark.parametrize("make", [connect, connect_async])
def test_options_are_no_mapping(make: Any, options: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"Expected ClientOptions.*ClientOptions\(timeout_s=5\)"):
        make("grpc://localhost", options)


@pytest.mark.parametrize("url", ["grpcs://localhost", "https://localhost"])
def test_tls_files_that_are_not_there(url: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="TLS file"):
        connect(url, ClientOptions(tls=TlsOptions(ca=tmp_path / "absent.pem")))
