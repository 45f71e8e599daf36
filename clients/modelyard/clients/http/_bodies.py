"""What HTTP requests and answers share over every transport: pure functions."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Mapping

from modelyard.clients.protocols import Answer, Call, error_from_body
from modelyard.errors import ModelyardError, ProtocolError, RequestTooLargeError

#: How a server with TLS begins its answer to a client without.
TLS_ALERT = b"\x15\x03"
#: Compressing less than this costs more than it saves.
_WORTH_COMPRESSING = 1024
_OK = 200
_UNAVAILABLE = 503
_JSON = ("content-type", "application/json")


def compressed(body: bytes, call: Call, wanted: bool, /) -> tuple[bytes, list[tuple[str, str]]]:
    """The body as it is sent, and the headers that say how."""
    headers = [] if any(name == "content-type" for name, _ in call.headers) else [_JSON]
    if not wanted or len(body) < _WORTH_COMPRESSING:
        return body, headers
    return gzip.compress(body, compresslevel=1), [*headers, ("content-encoding", "gzip")]


def inflated(data: bytes | memoryview, encoding: str | None, url: str, limit: int | None) -> bytes:
    """What a compressed body or message says; no more of it is inflated than the client takes."""
    if encoding != "gzip":
        raise ProtocolError(f"{url} answered with the encoding {encoding!r}; expected gzip or none.")
    inflater = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
    try:
        content = inflater.decompress(data, 0 if limit is None else limit + 1)
    except zlib.error as exc:
        raise ProtocolError(f"{url} answered with damaged gzip: {exc}.") from exc
    if limit is not None and len(content) > limit:
        raise too_large(url, limit)
    if not inflater.eof or inflater.unused_data:
        raise ProtocolError(f"{url} answered with damaged gzip: it ends {'late' if inflater.eof else 'early'}.")
    return content


def answer_of(status: int, headers: Mapping[str, str], data: bytes, url: str) -> Answer:
    """Turns an HTTP response into an answer."""
    # The status of a model that the server still starts with is a status, too.
    if status == _OK or (status == _UNAVAILABLE and b'"model_version_status"' in data):
        return Answer(data, headers)
    # From a function of its own: a frame that is in an error's traceback, and holds the error, makes a cycle of both.
    raise _error(status, headers, data, url)


def _error(status: int, headers: Mapping[str, str], data: bytes, url: str) -> ModelyardError:
    error = error_from_body(status, data, url)
    error.request_id = headers.get("x-request-id")
    after = headers.get("retry-after", "")
    # The other form that HTTP allows, a date, is of no use to a client whose deadline is seconds away.
    if after.isascii() and after.isdecimal():
        error.retry_after_s = float(after)
    return error


def too_large(url: str, limit: int) -> RequestTooLargeError:
    """The error for an answer that is longer than the client takes."""
    return RequestTooLargeError(
        f"{url} sent an answer larger than {limit} bytes, this client's max_message_bytes. Ask for fewer rows."
    )
