"""The gRPC transport."""

from modelyard.serving.transports.grpc._call import Context, Handler, failure_of, unary
from modelyard.serving.transports.grpc._grpcio import GrpcioServer
from modelyard.serving.transports.grpc._types import ARGUMENTS, GrpcLimits, Metadata, limits_of, unknown_method

__all__ = [
    "ARGUMENTS",
    "Context",
    "GrpcLimits",
    "GrpcioServer",
    "Handler",
    "Metadata",
    "failure_of",
    "limits_of",
    "unary",
    "unknown_method",
]
