"""TensorFlow Serving's gRPC services and REST API."""

from modelyard.clients.protocols.tfs._protocols import GrpcProtocol, RestProtocol

__all__ = [
    "GrpcProtocol",
    "RestProtocol",
]
