"""Server addresses: the URL forms that ``connect`` takes."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit

from modelyard.errors import ConfigurationError

_GRPC = ("grpc", "grpcs")
_HTTP = ("http", "https")
#: TensorFlow Serving's own ports; behind TLS stands a proxy on the usual port.
_PORTS = {"grpc": 8500, "grpcs": 443, "http": 8501, "https": 443}

FORMS = (
    "grpc://host:8500, grpcs://host:443, http://host:8501 or https://host:443/path/prefix (these ports are the "
    "defaults; IPv6 hosts in brackets)"
)


@dataclass(frozen=True, kw_only=True)
class Address:
    """Where a server is and how to speak to it.

    Attributes:
        protocol: ``grpc`` or ``rest``.
        secure: Whether TLS is used.
        host: Name or address, IPv6 in brackets.
        port: TCP port.
        prefix: Path before ``/v1/models``, without a slash at its end.
    """

    protocol: str
    secure: bool
    host: str
    port: int
    prefix: str = ""

    @property
    def authority(self) -> str:
        """``host:port``."""
        return f"{self.host}:{self.port}"

    @property
    def url(self) -> str:
        """The normal form of the URL."""
        scheme = "grpc" if self.protocol == "grpc" else "http"
        return f"{scheme}{'s' if self.secure else ''}://{self.authority}{self.prefix}"


def parse_address(url: str) -> Address:
    """Parses a server's URL.

    Args:
        url: One of the accepted forms.

    Raises:
        ConfigurationError: Another form; the message lists the accepted ones.
    """
    try:
        parts = urlsplit(url)
        port = parts.port
        host = parts.hostname
    except ValueError as exc:
        raise _refused(url, str(exc)) from exc
    scheme = parts.scheme
    if scheme not in _PORTS:
        raise _refused(url, f"the scheme is {scheme!r}" if "://" in url else "it has no scheme")
    if not host:
        raise _refused(url, "it has no host")
    if parts.query or parts.fragment or parts.username is not None:
        raise _refused(url, "user names, queries and fragments have no meaning here")
    prefix = parts.path.rstrip("/")
    if prefix and scheme in _GRPC:
        raise _refused(url, f"gRPC knows no path, so {prefix!r} has no meaning here")
    if port == 0:
        raise _refused(url, "port 0 is none")
    return Address(
        protocol="rest" if scheme in _HTTP else "grpc",
        secure=scheme in ("grpcs", "https"),
        host=f"[{host}]" if ":" in host else host,
        port=_PORTS[scheme] if port is None else port,
        prefix=prefix,
    )


def _refused(url: str, reason: str) -> ConfigurationError:
    return ConfigurationError(f"Cannot connect to {url!r}: {reason}. Expected {FORMS}.")
