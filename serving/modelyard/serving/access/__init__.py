"""Authentication, authorization and quotas; and TLS whose files may change."""

from modelyard.serving.access._access import Access, admitted
from modelyard.serving.access._credentials import UNIX_SOCKET, Credentials
from modelyard.serving.access._principals import Principal, Scope
from modelyard.serving.access._quotas import Ticket
from modelyard.serving.access._tls import LiveTls

__all__ = [
    "Access",
    "Credentials",
    "LiveTls",
    "Principal",
    "Scope",
    "Ticket",
    "UNIX_SOCKET",
    "admitted",
]
