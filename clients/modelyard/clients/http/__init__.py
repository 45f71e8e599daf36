"""HTTP/1.1 and gRPC's HTTP/2 from the client's side, with no I/O in them: a transport feeds what arrives."""

from modelyard.clients.http._bodies import answer_of, compressed, inflated, too_large
from modelyard.clients.http._hpack import decode as decode_fields
from modelyard.clients.http._hpack import encode as encode_fields
from modelyard.clients.http._http1 import Bytes, Reply
from modelyard.clients.http._http1 import Reader as Http1Reader
from modelyard.clients.http._http1 import Requests as Http1Requests
from modelyard.clients.http._http2 import Connection as Http2Connection
from modelyard.clients.http._http2 import Stream as Http2Stream

__all__ = [
    "Bytes",
    "Http1Reader",
    "Http1Requests",
    "Http2Connection",
    "Http2Stream",
    "Reply",
    "answer_of",
    "compressed",
    "decode_fields",
    "encode_fields",
    "inflated",
    "too_large",
]
