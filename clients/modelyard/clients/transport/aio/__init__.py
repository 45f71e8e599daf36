"""gRPC and REST on an event loop's sockets: the default, asynchronous."""

from modelyard.clients.transport.aio._grpc import AsyncLeanGrpcTransport
from modelyard.clients.transport.aio._rest import AsyncLeanRestTransport

__all__ = [
    "AsyncLeanGrpcTransport",
    "AsyncLeanRestTransport",
]
