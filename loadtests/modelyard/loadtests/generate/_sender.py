"""What carries requests: the interface, and how an address is read."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol
from urllib.parse import urlsplit

from modelyard.errors import ConfigurationError
from modelyard.loadtests.generate._outcomes import Outcome
from modelyard.loadtests.options import token
from modelyard.loadtests.traffic import Arrays, Request

#: Called once with what became of a request, and its answer (as bytes, or decoded) or the reason of its failure.
Answer = bytes | Arrays
Done = Callable[[Outcome, Answer], None]
Cancel = Callable[[], None]


class Sender(Protocol):
    """Carries requests to a server; made and used on one event loop."""

    def send(self, request: Request, done: Done) -> Cancel:
        """Send a request; ``done`` is called once, unless the returned function cancels the request before."""

    async def close(self) -> None:
        """Closes the connections."""


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """Where a server listens."""

    host: str
    port: int
    #: How to encrypt; None for not at all.
    tls: ssl.SSLContext | None = None
    #: Path before the API's own.
    prefix: str = ""
    #: Header fields of every request; never shown.
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)

    @property
    def authority(self) -> str:
        """``host:port``."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


_PORTS = {"grpc": 8500, "http": 8501, "grpcs": 443, "https": 443}


def endpoint(url: str) -> Endpoint:
    """Read a URL such as ``grpc://host:8500`` or ``https://host/prefix``."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as exc:
        raise ConfigurationError(f"Cannot connect to {url!r}: {exc}.") from exc
    if parts.scheme not in _PORTS or not parts.hostname:
        raise ConfigurationError(
            f"Cannot connect to {url!r}; expected grpc://host:8500, grpcs://host, http://host:8501 or https://host."
        )
    tls = None
    if parts.scheme in ("grpcs", "https"):
        tls = ssl.create_default_context()
        tls.set_alpn_protocols(["h2" if parts.scheme == "grpcs" else "http/1.1"])
    secret = token()
    return Endpoint(
        host=parts.hostname,
        port=port or _PORTS[parts.scheme],
        tls=tls,
        prefix=parts.path.rstrip("/"),
        headers=() if secret is None else (("authorization", f"Bearer {secret}"),),
    )
