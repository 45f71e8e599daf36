"""Bytes over HTTP: I/O and the mapping of httpx's errors, nothing else."""

from __future__ import annotations

import ssl
import time

import httpx

from modelyard.clients._address import Address
from modelyard.clients._flows import Call
from modelyard.clients._responses import error_from_body
from modelyard.errors import (
    DeadlineExceededError,
    InvalidRequestError,
    ModelyardError,
    ProtocolError,
    UnavailableError,
)

_HEADERS = {"content-type": "application/json"}


class RestTransport:
    """A blocking pool of HTTP connections.

    Args:
        address: Where the server is.
    """

    def __init__(self, address: Address) -> None:
        self._url = address.url
        # Reading the system's roots takes longer than everything else here: only where they are needed.
        context = ssl.create_default_context() if address.secure else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._client = httpx.Client(verify=context, follow_redirects=False)

    def send(self, call: Call, timeout_s: float) -> bytes:
        """Sends one request and waits for its answer.

        Args:
            call: The request.
            timeout_s: Seconds until it is given up.

        Raises:
            ModelyardError: The class that the failure or the HTTP status stands for.
        """
        url = self._url + call.path
        deadline = time.monotonic() + timeout_s
        method = "GET" if call.body is None else "POST"
        headers = None if call.body is None else _HEADERS
        try:
            # Each phase may take timeout_s; the loop holds the sum of them to it, too.
            with self._client.stream(method, url, content=call.body, headers=headers, timeout=timeout_s) as response:
                parts = []
                for part in response.iter_bytes():
                    parts.append(part)
                    if time.monotonic() > deadline:
                        raise DeadlineExceededError(f"{url}: no complete answer after {timeout_s:g} s.")
        except (httpx.HTTPError, httpx.InvalidURL) as exc:
            raise _error(exc, url, timeout_s) from exc
        data = b"".join(parts)
        if response.status_code != httpx.codes.OK:
            raise error_from_body(response.status_code, data, url)
        return data

    def close(self) -> None:
        """Closes the connections."""
        self._client.close()


def _error(exc: httpx.HTTPError | httpx.InvalidURL, url: str, timeout_s: float) -> ModelyardError:
    reason = str(exc).rstrip(".") or type(exc).__name__
    if isinstance(exc, httpx.TimeoutException):
        return DeadlineExceededError(f"{url}: no answer within {timeout_s:g} s ({type(exc).__name__}).")
    if isinstance(exc, (httpx.InvalidURL, httpx.LocalProtocolError, httpx.UnsupportedProtocol)):
        return InvalidRequestError(f"{url} cannot be asked: {reason}.")
    # A server that goes away closes the connection without an answer, which httpx counts as a protocol error.
    if isinstance(exc, (httpx.NetworkError, httpx.ProxyError)) or "disconnected" in reason:
        return UnavailableError(f"{url} cannot be reached: {reason}. Is the server running?")
    return ProtocolError(f"{url} did not answer in HTTP as expected: {type(exc).__name__}: {reason}.")
