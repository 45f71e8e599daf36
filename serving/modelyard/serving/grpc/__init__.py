"""The gRPC transport."""

from modelyard.serving.grpc._grpcio import GrpcioServer
from modelyard.serving.grpc._server import GrpcOptions, GrpcServer

__all__ = ["GrpcOptions", "GrpcServer", "GrpcioServer"]
