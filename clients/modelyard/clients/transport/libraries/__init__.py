"""gRPC and REST by grpcio and httpx: transport="library"."""

from modelyard.clients.transport.libraries._grpc import AsyncGrpcTransport, GrpcTransport
from modelyard.clients.transport.libraries._rest import AsyncHttpxTransport, HttpxTransport

__all__ = [
    "AsyncGrpcTransport",
    "AsyncHttpxTransport",
    "GrpcTransport",
    "HttpxTransport",
]
