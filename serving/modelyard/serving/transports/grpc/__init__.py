"""The gRPC transport."""

from modelyard.serving.transports.grpc._call import (
    Context,
    Guard,
    Handler,
    credentials_of,
    failure_of,
    peer_host,
    unary,
)
from modelyard.serving.transports.grpc._grpcio import GrpcioServer
from modelyard.serving.transports.grpc._types import ARGUMENTS, GrpcLimits, Metadata, limits_of, unknown_method

__all__ = [
    "ARGUMENTS",
    "Context",
    "GrpcLimits",
    "GrpcioServer",
    "Guard",
    "Handler",
    "Metadata",
    "credentials_of",
    "failure_of",
    "limits_of",
    "peer_host",
    "unary",
    "unknown_method",
]
