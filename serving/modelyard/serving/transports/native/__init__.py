"""The native core as a transport: gRPC and REST on ``modelyard_core``, which hands over what it does not answer."""

from modelyard.serving.transports.native._core import NativeCore
from modelyard.serving.transports.native._transports import NativeGrpc, NativeRest

__all__ = [
    "NativeCore",
    "NativeGrpc",
    "NativeRest",
]
