"""The first lines of an HTTP/1.1 request, read by httptools and judged once more here.

What two servers in a row may read differently lets a stranger smuggle requests
past the first of them: whatever is not certain is refused (RFC 9112, section 6.3).
"""

from __future__ import annotations

import re

import httptools

from modelyard.serving._requests import FIELDS_OF_ONE_CALL, REQUEST_ID, request_id_of
from modelyard.serving.http1._types import Head

#: What stands before the body may have so many bytes, and so many lines.
MAX_HEAD_BYTES = 32 << 10
MAX_HEADERS = 100
_HOST = b"host"
_LENGTH = b"content-length"
_CODING = b"transfer-encoding"
_MAX_LENGTH_DIGITS = 18
#: Lines that differ between requests that are alike otherwise; none that goes on in the next line.
_OF_ONE_REQUEST = re.compile(
    rb"\r\n(?:(?i:%b):[ \t]*([0-9]{1,%d})|(?i:%b):[\t\x20-\x7e\x80-\xff]*)(?=\r\n[^ \t])"
    % (_LENGTH, _MAX_LENGTH_DIGITS, b"|".join(sorted(FIELDS_OF_ONE_CALL)))
)

#: A field that goes on in the next line has no end here.
_REQUEST_ID = re.compile(rb"\r\n(?i:%b):[ \t]*([^\r\n \t]+)[ \t]*\r\n(?![ \t])" % REQUEST_ID.encode())

#: What heads are told apart by.
Key = tuple[bytes | bool, ...]


class BadRequest(Exception):
    """The bytes are no request: the connection ends.

    Args:
        status: HTTP status.
        reason: What is wrong, for the client.
    """

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason


class _Lines:
    """What httptools calls back."""

    def __init__(self) -> None:
        self.url = b""
        self.fields: list[tuple[bytes, bytes]] = []
        self.complete = False

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.fields.append((name.lower(), value.strip(b" \t")))

    def on_headers_complete(self) -> None:
        self.complete = True


def key_of(data: bytes) -> tuple[Key, int | None]:
    """What the heads of like requests have in common, without reading them.

    Args:
        data: A head, with the empty line at the end.

    Returns:
        The same key for heads that :func:`read_head` says the same of, but for
        the length; and the length, None where the head itself says it.

    Raises:
        BadRequest: There are too many bytes.
    """
    if len(data) > MAX_HEAD_BYTES:
        raise too_long()
    parts = _OF_ONE_REQUEST.split(data)
    lengths = [length for length in parts[1::2] if length is not None]
    if len(lengths) > 1:
        # Nothing that is right.
        return (data,), None
    # A head with a length must never be taken for one without.
    return (bool(lengths), *parts[::2]), int(lengths[0]) if lengths else None


def request_id_in(data: bytes) -> str:
    """The request id in a head; empty where it has none that is valid.

    Args:
        data: A head, with the empty line at the end.
    """
    found = _REQUEST_ID.search(data)
    return "" if found is None else request_id_of(found[1])


def read_head(data: bytes) -> Head:
    """Reads the head of a request.

    Args:
        data: Its bytes, with the empty line at the end.

    Returns:
        What it says, without the fields of this one request: it holds for all of its key.

    Raises:
        BadRequest: They are none, or have too many fields.
    """
    if not data.count(b"\r") == data.count(b"\n") == data.count(b"\r\n"):
        raise BadRequest(400, "Invalid HTTP request: its lines must end with a carriage return and a line feed.")
    lines = _Lines()
    parser = httptools.HttpRequestParser(lines)
    try:
        parser.feed_data(data)
        upgrade = False
    except httptools.HttpParserUpgrade:
        # An offer to speak another protocol may be left unheard.
        upgrade = True
    except httptools.HttpParserError as exc:
        raise BadRequest(400, f"Invalid HTTP request: {exc}") from exc
    method = parser.get_method().decode("latin-1")
    version = parser.get_http_version()
    if not lines.complete or version not in ("1.0", "1.1") or method == "CONNECT":
        raise BadRequest(400, "Invalid HTTP request: expected HTTP/1.1, and a method other than CONNECT.")
    if len(lines.fields) > MAX_HEADERS:
        raise BadRequest(431, f"The request has {len(lines.fields)} header fields; expected {MAX_HEADERS} at most.")
    headers: dict[bytes, bytes] = {}
    for name, value in lines.fields:
        if name in headers:
            if name in (_HOST, _LENGTH, _CODING):
                raise BadRequest(400, f"Invalid HTTP request: more than one {name.decode('latin-1')}.")
            value = headers[name] + b", " + value
        headers[name] = value
    path, query = _target(lines.url)
    length = _length(headers, version)
    for name in (_LENGTH, *FIELDS_OF_ONE_CALL):
        headers.pop(name, None)
    return Head(
        method=method,
        path=path,
        query=query,
        headers=headers,
        length=length,
        keep_alive=version == "1.1" and (upgrade or parser.should_keep_alive()) and not _closes(headers),
        expects=version == "1.1" and headers.get(b"expect", b"").lower() == b"100-continue",
    )


def too_long() -> BadRequest:
    """What a head that is too long is answered with."""
    return BadRequest(431, f"The request's line and header fields take more than {MAX_HEAD_BYTES} bytes.")


def _target(url: bytes) -> tuple[str, str]:
    try:
        parsed = httptools.parse_url(url)
    except httptools.HttpParserError as exc:
        raise BadRequest(400, f"Invalid HTTP request: its URL is none: {exc}") from exc
    return (parsed.path or b"").decode("latin-1"), (parsed.query or b"").decode("latin-1")


def _length(headers: dict[bytes, bytes], version: str) -> int | None:
    coding, length = headers.get(_CODING), headers.get(_LENGTH)
    if coding is not None:
        if length is not None:
            raise BadRequest(400, "Invalid HTTP request: it has both Content-Length and Transfer-Encoding.")
        if coding.lower() != b"chunked" or version != "1.1":
            raise BadRequest(400, "Invalid HTTP request: the only Transfer-Encoding is chunked, of HTTP/1.1.")
        return None
    if length is None:
        return 0
    if not length.isdigit() or len(length) > _MAX_LENGTH_DIGITS:
        raise BadRequest(400, "Invalid HTTP request: Content-Length is no number.")
    return int(length)


def _closes(headers: dict[bytes, bytes]) -> bool:
    return b"close" in [token.strip() for token in headers.get(b"connection", b"").lower().split(b",")]
