"""How a client behaves: frozen, keyword-only, and silent about its secrets."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Literal

from modelyard.errors import ConfigurationError

Metadata = Mapping[str, str]
#: Header names whose values no representation shows, whatever their case.
_SECRET_NAMES = ("authorization", "cookie", "key", "password", "secret", "token")
_MASK = "***"
#: What sockets and locks can wait: some 30 years.
_LONGEST_S = 10**9


@dataclass(frozen=True, kw_only=True)
class RetryOptions:
    """When a call that may be repeated is sent again.

    Only UNAVAILABLE and RESOURCE_EXHAUSTED (HTTP 503 and 429) are repeated, and never ``reload_config``.
    Pauses grow exponentially with full jitter (Brooker, "Exponential Backoff And Jitter", AWS 2015);
    a ``retry-after`` of the server is the least pause. The budget is gRPC's idea (proposal A6,
    "retry throttling"): every call adds ``budget_ratio`` tokens, every repetition and every hedged call takes one.

    Attributes:
        attempts: Times a call is sent at most, the first included, and not those that hedge another.
        first_pause_s: Longest pause before the second attempt.
        longest_pause_s: Longest pause before any.
        budget: Tokens at most, and at the start.
        budget_ratio: Tokens that each call adds.
    """

    attempts: int = 4
    first_pause_s: float = 0.05
    longest_pause_s: float = 2.0
    budget: float = 20.0
    budget_ratio: float = 0.2

    def __post_init__(self) -> None:
        if not isinstance(self.attempts, int) or self.attempts < 1:
            raise ConfigurationError(f"Expected one attempt or more; received attempts={self.attempts!r}.")
        for name in ("first_pause_s", "longest_pause_s", "budget", "budget_ratio"):
            value = getattr(self, name)
            if not (isinstance(value, (int, float)) and 0 <= value < math.inf):
                raise ConfigurationError(f"Expected a number of 0 or more; received {name}={value!r}.")


@dataclass(frozen=True, kw_only=True)
class TlsOptions:
    """Whom ``grpcs`` and ``https`` trust, and who the client is.

    Attributes:
        ca: PEM file of the roots to trust instead of the system's.
        certificate: PEM file of the client's certificate chain, for mutual TLS.
        key: PEM file of the client's private key.
        server_name: Name that the server's certificate must have, where it is not the URL's host.
    """

    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None
    server_name: str | None = None

    def __post_init__(self) -> None:
        for name in ("ca", "certificate", "key"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, Path(getattr(self, name)))
        if (self.certificate is None) != (self.key is None):
            raise ConfigurationError("Mutual TLS takes a certificate and its key; received only one of them.")

    def __repr__(self) -> str:
        key = None if self.key is None else _MASK
        return (
            f"TlsOptions(ca={self.ca!r}, certificate={self.certificate!r}, key={key!r}, "
            f"server_name={self.server_name!r})"
        )


@dataclass(frozen=True, kw_only=True)
class BalanceOptions:
    """How calls spread over several addresses.

    Attributes:
        dns: Every address that a host name resolves to is one of its own.
        dns_refresh_s: Seconds between two looks at the name.
        probe_interval_s: Seconds between two health checks of each address.
        probe_timeout_s: Seconds after which a health check has failed.
    """

    dns: bool = False
    dns_refresh_s: float = 30.0
    probe_interval_s: float = 0.25
    probe_timeout_s: float = 0.5

    def __post_init__(self) -> None:
        for name in ("dns_refresh_s", "probe_interval_s", "probe_timeout_s"):
            check_seconds(getattr(self, name), name)


@dataclass(frozen=True, kw_only=True)
class ClientOptions:
    """How a client behaves.

    Attributes:
        timeout_s: Deadline of an operation that names none of its own.
        metadata_ttl_s: Seconds for which what the server said about the newest
            version, or about a label, is believed. Versions never change.
        retry: When a call is sent again.
        hedge_after_s: Seconds without an answer after which the same call is sent a second time, and the
            first answer wins; None for never. Only for calls that may be repeated, and within the budget of ``retry``.
        balance: How calls spread over several addresses.
        tls: Whom to trust, for ``grpcs`` and ``https``.
        metadata: gRPC metadata or HTTP headers of every call.
        token: Sent as ``authorization: Bearer ...``; a callable is asked before each call, so that tokens may expire.
            It goes to the address that was given, over plain text, too: an untrusted network calls for ``grpcs``
            or ``https``.
        compression: ``gzip`` compresses what is sent, and lets the server compress what it answers.
        max_message_bytes: Longest answer; None for any.
        keepalive_s: Seconds of silence after which the other side is checked, and after which a pooled
            connection is closed; None leaves connections alone.
        max_connections: Connections to each address at most; further calls wait. A call has one for itself, but for
            asynchronous gRPC, which shares one as long as the server lets it. Health checks have another one.
        transport: How calls travel: ``own`` over this package's sockets, which takes a fraction of the time;
            ``library`` over grpcio and httpx, as calls through a proxy always do.
    """

    timeout_s: float = 60.0
    metadata_ttl_s: float = 60.0
    retry: RetryOptions = field(default_factory=RetryOptions)
    hedge_after_s: float | None = None
    balance: BalanceOptions = field(default_factory=BalanceOptions)
    tls: TlsOptions = field(default_factory=TlsOptions)
    metadata: Metadata = field(default_factory=dict)
    token: str | Callable[[], str] | None = None
    compression: Literal["gzip"] | None = None
    max_message_bytes: int | None = None
    keepalive_s: float | None = 60.0
    max_connections: int = 100
    transport: Literal["own", "library"] = "own"

    def __post_init__(self) -> None:
        check_seconds(self.timeout_s, "a timeout")
        parts = {"retry": RetryOptions, "balance": BalanceOptions, "tls": TlsOptions, "metadata": Mapping}
        for name, kind in parts.items():
            # Not their values, which may be secrets.
            if not isinstance(getattr(self, name), kind):
                received = type(getattr(self, name)).__name__
                raise ConfigurationError(f"Expected {name} to be a {kind.__name__}; received one of type {received}.")
        ttl = self.metadata_ttl_s
        if not (isinstance(ttl, (int, float)) and ttl >= 0):
            raise ConfigurationError(f"Expected a number of 0 or more; received metadata_ttl_s={ttl!r}.")
        token: object = self.token
        if token is not None and not isinstance(token, str) and not callable(token):
            # Not its value, which may be a secret.
            received = type(token).__name__
            raise ConfigurationError(f"Expected token to be text or a function; received one of type {received}.")
        for name in ("hedge_after_s", "keepalive_s"):
            value = getattr(self, name)
            if value is not None:
                check_seconds(value, name)
        if self.compression not in (None, "gzip"):
            raise ConfigurationError(f"Expected compression='gzip' or None; received {self.compression!r}.")
        if self.transport not in ("own", "library"):
            raise ConfigurationError(f"Expected transport='own' or 'library'; received {self.transport!r}.")
        for name in ("max_connections", "max_message_bytes"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or value < 1):
                raise ConfigurationError(f"Expected a whole number of 1 or more; received {name}={value!r}.")
        for name, value in self.metadata.items():
            if not _is_header(name, value):
                raise ConfigurationError(
                    "Expected metadata of lower-case ASCII names, not of binary values (-bin), and printable ASCII "
                    f"values without spaces around them; received {name!r}."
                )

    def __repr__(self) -> str:
        shown = {item.name: getattr(self, item.name) for item in fields(self)}
        shown["token"] = None if self.token is None else _MASK
        shown["metadata"] = {
            name: _MASK if any(part in name for part in _SECRET_NAMES) else value
            for name, value in self.metadata.items()
        }
        return f"ClientOptions({', '.join(f'{name}={value!r}' for name, value in shown.items())})"


def check_seconds(value: float, name: str) -> None:
    if isinstance(value, bool) or not (isinstance(value, (int, float)) and 0 < value <= _LONGEST_S):
        raise ConfigurationError(
            f"Expected {name} in seconds, more than 0 and at most {_LONGEST_S:,.0f}; received {value!r}."
        )


def _is_header(name: object, value: object) -> bool:
    return (
        isinstance(name, str)
        and isinstance(value, str)
        and name != ""
        and name == name.lower()
        and all(letter.isascii() and (letter.isalnum() or letter in "-_.") for letter in name)
        and not name.endswith("-bin")
        and value.isascii()
        and value.isprintable()
        and value == value.strip()
    )
