"""Server addresses: the URL forms that ``connect`` takes."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from urllib.parse import urlsplit

from modelyard.errors import ConfigurationError, UnavailableError

_V2 = "+v2"
_GRPC = ("grpc", "grpcs")
_HTTP = ("http", "https")
#: TensorFlow Serving's own ports, and Triton's for the Open Inference Protocol; behind TLS stands a proxy on the
#: usual port.
_PORTS = {
    "grpc": 8500, "grpcs": 443, "http": 8501, "https": 443,
    "grpc+v2": 8001, "grpcs+v2": 443, "http+v2": 8000, "https+v2": 443,
}  # fmt: skip

FORMS = (
    "grpc://host:8500, grpcs://host:443, http://host:8501 or https://host:443/path/prefix (these ports are the "
    "defaults; IPv6 hosts in brackets), or any of them with +v2 for the Open Inference Protocol, such as "
    "grpc+v2://host:8001 and http+v2://host:8000"
)


@dataclass(frozen=True, kw_only=True)
class Address:
    """Where a server is and how to speak to it."""

    #: ``grpc`` or ``rest``.
    protocol: str
    #: Whether TLS is used.
    secure: bool
    #: Name or address, IPv6 in brackets.
    host: str
    #: TCP port.
    port: int
    #: Path before ``/v1/models``, without a slash at its end.
    prefix: str = ""
    #: Whether it speaks the Open Inference Protocol instead of TensorFlow Serving's.
    v2: bool = False
    #: Name that the host was resolved from; None where it is the URL's own.
    server_name: str | None = None

    @property
    def authority(self) -> str:
        """``host:port``."""
        return f"{self.host}:{self.port}"

    @property
    def url(self) -> str:
        """The normal form of the URL."""
        scheme = "grpc" if self.protocol == "grpc" else "http"
        return f"{scheme}{'s' if self.secure else ''}{_V2 if self.v2 else ''}://{self.authority}{self.prefix}"

    @property
    def http_url(self) -> str:
        """The URL that HTTP knows."""
        return f"http{'s' if self.secure else ''}://{self.authority}{self.prefix}"


def parse_addresses(urls: str | Sequence[str]) -> tuple[Address, ...]:
    """Parses the URLs of one or several servers."""
    parts = urls.split(",") if isinstance(urls, str) else list(urls) if isinstance(urls, Iterable) else [urls]
    if not all(isinstance(part, str) for part in parts):
        raise ConfigurationError(f"Cannot connect to {urls!r}: a URL is text. Expected {FORMS}.")
    addresses = tuple(dict.fromkeys(parse_address(part.strip()) for part in parts))
    if not addresses:
        raise ConfigurationError(f"Cannot connect to nothing. Expected {FORMS}.")
    if len({(address.protocol, address.secure, address.v2) for address in addresses}) > 1:
        raise ConfigurationError(
            f"Cannot connect to {', '.join(address.url for address in addresses)} with one client: expected servers "
            "of one scheme."
        )
    return addresses


def parse_address(url: str) -> Address:
    try:
        parts = urlsplit(url)
        port = parts.port
        host = parts.hostname
    except ValueError as exc:
        raise _refused(url, str(exc)) from None
    scheme = parts.scheme
    if "unix" in scheme:
        raise _refused(url, "clients do not speak over Unix sockets, so name a TCP port of the server")
    if scheme not in _PORTS:
        raise _refused(url, f"the scheme is {scheme!r}" if "://" in url else "it has no scheme")
    if not host:
        raise _refused(url, "it has no host")
    try:
        host.encode("idna")
    except UnicodeError as exc:
        raise _refused(url, f"{host!r} is no host name, whose parts between dots have 1 to 63 characters") from exc
    if parts.query or parts.fragment or parts.username is not None:
        raise _refused(url, "queries and fragments have no meaning here")
    prefix = parts.path.rstrip("/")
    if prefix in ("/v1", "/v2") or "/v1/models" in prefix or "/v2/models" in prefix:
        raise _refused(url, f"the path of the API, {prefix!r}, is the client's to add, so leave it out")
    base = scheme.removesuffix(_V2)
    if prefix and base in _GRPC:
        raise _refused(url, f"gRPC knows no path, so {prefix!r} has no meaning here")
    if port == 0:
        raise _refused(url, "port 0 is none")
    return Address(
        protocol="rest" if base in _HTTP else "grpc",
        secure=base in ("grpcs", "https"),
        host=f"[{host}]" if ":" in host else host,
        port=_PORTS[scheme] if port is None else port,
        prefix=prefix,
        v2=scheme.endswith(_V2),
    )


def resolve(address: Address) -> tuple[Address, ...]:
    """Looks up all IP addresses of a host."""
    name = address.host.strip("[]")
    try:
        found = socket.getaddrinfo(name, address.port, type=socket.SOCK_STREAM)
    except OSError as exc:
        raise UnavailableError(f"{address.url}: the name {name!r} cannot be resolved: {exc}.") from exc
    hosts = sorted({str(row[4][0]) for row in found})
    return tuple(
        replace(address, host=f"[{host}]" if ":" in host else host, server_name=address.server_name or name)
        for host in hosts
    )


def _refused(url: str, reason: str) -> ConfigurationError:
    if "@" in url:
        # A password is nothing for logs. Some of its characters end it early, and a reason may quote the rest.
        url, reason = re.sub("^([^/@]*://)?.*@", r"\1***@", url), "user names and passwords have no meaning here"
    return ConfigurationError(f"Cannot connect to {url!r}: {reason}. Expected {FORMS}.")
