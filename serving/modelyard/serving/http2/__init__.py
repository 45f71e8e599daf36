"""gRPC over HTTP/2 on asyncio, for servers: no thread, no hop, bytes in and bytes out."""

from modelyard.serving.grpc import Metadata, unknown_method
from modelyard.serving.http2._calls import Begin, Context, Respond
from modelyard.serving.http2._server import Http2Options, Http2Server, WrongPort, options_of

__all__ = [
    "Begin",
    "Context",
    "Http2Options",
    "Http2Server",
    "Metadata",
    "Respond",
    "WrongPort",
    "options_of",
    "unknown_method",
]
