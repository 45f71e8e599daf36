"""The gRPC transport."""

from modelyard.serving.transports.grpc._call import (
    Context,
    Guard,
    Handler,
    failure_of,
    peer_host,
    unary,
)
from modelyard.serving.transports.grpc._grpcio import GrpcioServer
from modelyard.serving.transports.grpc._types import (
    ARGUMENTS,
    AioHandler,
    GrpcLimits,
    Metadata,
    RpcHandler,
    limits_of,
    unknown_method,
)

__all__ = [
    "ARGUMENTS",
    "AioHandler",
    "Context",
    "GrpcLimits",
    "GrpcioServer",
    "Guard",
    "Handler",
    "Metadata",
    "RpcHandler",
    "failure_of",
    "limits_of",
    "peer_host",
    "unary",
    "unknown_method",
]
