"""The gRPC transport."""

from modelyard.serving.grpc._call import request_id_in
from modelyard.serving.grpc._grpcio import GrpcioServer
from modelyard.serving.grpc._server import GrpcOptions, GrpcServer
from modelyard.serving.grpc._types import ARGUMENTS, GrpcLimits, Metadata, limits_of, unknown_method

__all__ = [
    "ARGUMENTS",
    "GrpcLimits",
    "GrpcOptions",
    "GrpcServer",
    "GrpcioServer",
    "Metadata",
    "limits_of",
    "request_id_in",
    "unknown_method",
]
