"""Credentials of a caller."""

from __future__ import annotations

import contextlib
import ipaddress
from dataclasses import dataclass, field
from functools import lru_cache
from types import ModuleType

from modelyard.lazy import needs_extra

#: The host of callers that came by a UNIX socket that the server was told to listen on.
UNIX_SOCKET = "unix:"


@dataclass(frozen=True, kw_only=True, slots=True)
class Credentials:
    """What a caller presents; its repr shows no secrets."""

    #: The header field, or the gRPC metadata, of that name.
    authorization: str | None = field(default=None, repr=False)
    #: The same of ``x-api-key``.
    key: str | None = field(default=None, repr=False)
    #: The client's certificate in DER, verified by the transport.
    certificate: bytes | None = field(default=None, repr=False)
    #: The caller's IP address, or :data:`UNIX_SOCKET`; None where somebody elsewhere may be behind it.
    host: str | None = None

    @property
    def is_local(self) -> bool:
        if self.host is None or self.host == UNIX_SOCKET:
            return self.host is not None
        with contextlib.suppress(ValueError):
            address = ipaddress.ip_address(self.host)
            return (getattr(address, "ipv4_mapped", None) or address).is_loopback
        return False


# Of certificates that the transport verified. The TLS libraries bound one by 100 KiB, so these take 7 MiB at most.
@lru_cache(maxsize=64)
def subject_of(certificate: bytes) -> str:
    """The subject of a certificate as RFC 4514 writes it, such as ``CN=ci,O=Example``."""
    text: str = _x509().load_der_x509_certificate(certificate).subject.rfc4514_string()
    return text


def normal_subject(text: str) -> str:
    normal: str = _x509().Name.from_rfc4514_string(text).rfc4514_string()
    return normal


def _x509() -> ModuleType:
    with needs_extra("access", "cryptography", purpose="Knowing clients by their certificates"):
        from cryptography import x509
    return x509
