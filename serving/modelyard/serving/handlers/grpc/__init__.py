"""gRPC's handlers of TensorFlow Serving's services."""

from modelyard.serving.handlers.grpc._handlers import caller_of
from modelyard.serving.handlers.grpc._server import GrpcOptions, GrpcServer

__all__ = [
    "GrpcOptions",
    "GrpcServer",
    "caller_of",
]
