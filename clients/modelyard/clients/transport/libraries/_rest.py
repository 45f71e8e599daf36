"""Bytes over HTTP: I/O and the mapping of httpx's errors, nothing else."""

from __future__ import annotations

import ssl
import time
from typing import Any

import httpx

from modelyard.clients.http import answer_of, compressed, too_large
from modelyard.clients.protocols import Answer
from modelyard.clients.transport import Address, ClientOptions, Send
from modelyard.clients.transport.lean import ssl_context
from modelyard.errors import (
    DeadlineExceededError,
    InvalidRequestError,
    ModelyardError,
    ProtocolError,
    UnavailableError,
)


class AsyncHttpxTransport:
    """A pool of HTTP connections of an event loop.

    Args:
        address: Where the server is.
        options: TLS, sizes, compression and keep-alive.

    Raises:
        ConfigurationError: A TLS file cannot be read.
    """

    def __init__(self, address: Address, options: ClientOptions) -> None:
        self._url = address.http_url
        self._options = options
        self._request = _Request(address, options)
        self._client = httpx.AsyncClient(verify=_context(address, options), limits=_limits(options))

    async def send(self, send: Send[Any]) -> Answer:
        """Sends one request and waits for its answer; cancelling the task closes the connection.

        Args:
            send: The request, and the seconds until it is given up.

        Raises:
            ModelyardError: The class that the failure or the HTTP status stands for.
        """
        url = self._url + send.call.path
        deadline = time.monotonic() + send.timeout_s
        try:
            async with self._client.stream(**self._request.arguments(url, send)) as response:
                parts, size = [], 0
                async for part in response.aiter_bytes():
                    parts.append(part)
                    size += len(part)
                    _check(url, size, deadline, send.timeout_s, self._options)
        except (httpx.HTTPError, httpx.InvalidURL) as exc:
            raise _error(exc, url, send.timeout_s) from exc
        return answer_of(response.status_code, dict(response.headers), b"".join(parts), url)

    async def close(self) -> None:
        """Closes the connections."""
        await self._client.aclose()


class HttpxTransport:
    """A blocking pool of httpx's connections, for proxies and for those who ask for it.

    Args:
        address: Where the server is.
        options: TLS, sizes, compression and keep-alive.

    Raises:
        ConfigurationError: A TLS file cannot be read.
    """

    def __init__(self, address: Address, options: ClientOptions) -> None:
        self._url = address.http_url
        self._options = options
        self._request = _Request(address, options)
        self._client = httpx.Client(verify=_context(address, options), limits=_limits(options))

    def send(self, send: Send[Any]) -> Answer:
        """Sends one request and waits for its answer.

        Args:
            send: The request, and the seconds until it is given up.

        Raises:
            ModelyardError: The class that the failure or the HTTP status stands for.
        """
        url = self._url + send.call.path
        deadline = time.monotonic() + send.timeout_s
        try:
            # Each phase may take timeout_s; the loop holds the sum of them to it, too.
            with self._client.stream(**self._request.arguments(url, send)) as response:
                parts, size = [], 0
                for part in response.iter_bytes():
                    parts.append(part)
                    size += len(part)
                    _check(url, size, deadline, send.timeout_s, self._options)
        except (httpx.HTTPError, httpx.InvalidURL) as exc:
            raise _error(exc, url, send.timeout_s) from exc
        return answer_of(response.status_code, dict(response.headers), b"".join(parts), url)

    def close(self) -> None:
        """Closes the connections."""
        self._client.close()


class _Request:
    """What httpx is told about every request."""

    def __init__(self, address: Address, options: ClientOptions) -> None:
        self._compress = options.compression is not None
        self._host = None if address.server_name is None else f"{address.server_name}:{address.port}"
        name = options.tls.server_name or address.server_name
        self._extensions = {"sni_hostname": name} if address.secure and name is not None else {}

    def arguments(self, url: str, send: Send[Any]) -> dict[str, Any]:
        """Arguments of ``stream``."""
        call = send.call
        body, headers = call.body, [*send.headers, *call.headers]
        headers.append(("accept-encoding", "gzip" if self._compress else "identity"))
        if self._host is not None:
            headers.append(("host", self._host))
        if body is not None:
            body, more = compressed(body, call, self._compress)
            headers += more
        return {
            "method": "GET" if body is None else "POST",
            "url": url,
            "content": body,
            "headers": headers,
            "timeout": send.timeout_s,
            "follow_redirects": False,
            "extensions": self._extensions,
        }


def _check(url: str, size: int, deadline: float, timeout_s: float, options: ClientOptions) -> None:
    if options.max_message_bytes is not None and size > options.max_message_bytes:
        raise too_large(url, options.max_message_bytes)
    if time.monotonic() > deadline:
        raise DeadlineExceededError(f"{url}: no complete answer after {timeout_s:g} s.")


def _context(address: Address, options: ClientOptions) -> ssl.SSLContext:
    # Reading the system's roots takes longer than everything else here: only where they are needed.
    return ssl_context(options.tls) if address.secure else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def _limits(options: ClientOptions) -> httpx.Limits:
    return httpx.Limits(
        max_connections=options.max_connections,
        max_keepalive_connections=options.max_connections,
        keepalive_expiry=options.keepalive_s,
    )


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
