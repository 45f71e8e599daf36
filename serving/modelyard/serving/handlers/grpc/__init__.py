"""gRPC's handlers of TensorFlow Serving's services."""

from modelyard.serving.handlers.grpc._handlers import caller_of
from modelyard.serving.handlers.grpc._server import GrpcServer

__all__ = [
    "GrpcServer",
    "caller_of",
]
