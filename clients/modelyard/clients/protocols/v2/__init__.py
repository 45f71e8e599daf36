"""The Open Inference Protocol over gRPC and REST."""

from modelyard.clients.protocols.v2._codec import prediction_from_message
from modelyard.clients.protocols.v2._protocols import GrpcV2Protocol, RestV2Protocol

__all__ = [
    "GrpcV2Protocol",
    "RestV2Protocol",
    "prediction_from_message",
]
