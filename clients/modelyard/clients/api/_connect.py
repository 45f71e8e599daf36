"""What both ways to connect share."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TypeVar

from modelyard.clients.protocols import Protocol
from modelyard.clients.transport import Address, ClientOptions, parse_addresses
from modelyard.errors import ConfigurationError

_T = TypeVar("_T")

_GRPC_PROXIES = ("grpc_proxy", "https_proxy", "http_proxy")


def address_of(url: str | Sequence[str]) -> tuple[tuple[Address, ...], str]:
    """Parses URLs."""
    addresses = parse_addresses(url)
    return addresses, ",".join(address.url for address in addresses)


def options_of(options: _T | None, kind: type[_T], example: str) -> _T:
    """Options that were given, or the defaults; raises ConfigurationError for anything else."""
    if options is None:
        return kind()
    if not isinstance(options, kind):
        raise ConfigurationError(
            f"Expected {kind.__name__}; received {type(options).__name__}. Write, say, {kind.__name__}({example})."
        )
    return options


def make_protocol(address: Address, options: ClientOptions) -> Protocol:
    """Makes the operations of the protocol that a URL names."""
    if address.v2:
        from modelyard.clients.protocols.v2 import GrpcV2Protocol, RestV2Protocol

        return (GrpcV2Protocol if address.protocol == "grpc" else RestV2Protocol)(metadata_ttl_s=options.metadata_ttl_s)
    from modelyard.clients.protocols.tfs import GrpcProtocol, RestProtocol

    return (GrpcProtocol if address.protocol == "grpc" else RestProtocol)(metadata_ttl_s=options.metadata_ttl_s)


def uses_proxy(address: Address) -> bool:
    """Whether the environment (``HTTP_PROXY``, ``NO_PROXY`` and the like) may send this host through a proxy."""
    if address.protocol == "grpc":
        # gRPC's own variables, and its own idea of exceptions: whether they apply here it decides itself.
        return any(os.environ.get(name) for name in _GRPC_PROXIES)
    # Not free to import, and of no use over gRPC.
    import urllib.request

    proxies = urllib.request.getproxies()
    scheme = "https" if address.secure else "http"
    if scheme not in proxies and "all" not in proxies:
        return False
    return not urllib.request.proxy_bypass(address.authority)
