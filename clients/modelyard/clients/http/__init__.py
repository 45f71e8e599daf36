"""HTTP/1.1 and gRPC's HTTP/2 from the client's side, with no I/O in them: whoever has a socket feeds what arrives."""

from modelyard.clients._hpack import encode as encode_fields
from modelyard.clients._http1 import Bytes, Reply
from modelyard.clients._http1 import Reader as Http1Reader
from modelyard.clients._http2 import Connection as Http2Connection
from modelyard.clients._http2 import Stream as Http2Stream

__all__ = ["Bytes", "Http1Reader", "Http2Connection", "Http2Stream", "Reply", "encode_fields"]
