"""The clients room: one interface to a TensorFlow Serving API, over gRPC or REST, without TensorFlow."""

from modelyard.clients._client import Client, ClientOptions, connect
from modelyard.clients._results import (
    ModelMetadata,
    ModelStatus,
    Prediction,
    SignatureInfo,
    TensorInfo,
    VersionState,
    VersionStatus,
)

__all__ = [
    "Client",
    "ClientOptions",
    "ModelMetadata",
    "ModelStatus",
    "Prediction",
    "SignatureInfo",
    "TensorInfo",
    "VersionState",
    "VersionStatus",
    "connect",
]
