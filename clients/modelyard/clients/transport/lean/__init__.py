"""gRPC and REST on plain sockets: the default, blocking."""

from modelyard.clients.transport.lean._grpc import Codec, LeanGrpcTransport, no_http2
from modelyard.clients.transport.lean._grpc_status import error_of_status
from modelyard.clients.transport.lean._rest import LeanRestTransport
from modelyard.clients.transport.lean._sockets import failed, keep_alive
from modelyard.clients.transport.lean._tls import ssl_context

__all__ = [
    "Codec",
    "LeanGrpcTransport",
    "LeanRestTransport",
    "error_of_status",
    "failed",
    "keep_alive",
    "no_http2",
    "ssl_context",
]
