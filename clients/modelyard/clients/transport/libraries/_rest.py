"""Bytes over HTTP: I/O and the mapping of httpx's errors, nothing else."""

from __future__ import annotations

import asyncio
import contextlib
import os
import ssl
import threading
import weakref
from concurrent import futures
from functools import partial
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any

import httpx

from modelyard.clients.http import answer_of, compressed, inflated, too_large
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


class _Requests:
    """What httpx is told about every request."""

    def __init__(self, address: Address, options: ClientOptions) -> None:
        self._url = address.http_url
        self._options = options
        self._compress = options.compression is not None
        self._host = None if address.server_name is None else f"{address.server_name}:{address.port}"
        name = options.tls.server_name or address.server_name
        self._extensions = {"sni_hostname": name} if address.secure and name is not None else {}

    def _arguments(self, url: str, send: Send[object]) -> dict[str, Any]:
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


class AsyncHttpxTransport(_Requests):
    """A pool of HTTP connections of an event loop."""

    def __init__(self, address: Address, options: ClientOptions) -> None:
        super().__init__(address, options)
        self._client = httpx.AsyncClient(
            verify=_context(address, options), limits=_limits(options), cookies=_no_cookies()
        )
        # httpcore goes through all calls that wait for a connection whenever one begins or ends, and its deadlines wait
        # with them: it gets no more calls than it has connections.
        self._slots = asyncio.Semaphore(options.max_connections)

    async def send(self, send: Send[object]) -> Answer:
        url = self._url + send.call.path
        body = _Body(url, self._options)
        try:
            async with asyncio.timeout(send.timeout_s), self._slots:
                async with self._client.stream(**self._arguments(url, send)) as response:
                    async for part in response.aiter_raw():
                        body.add(part)
        except TimeoutError as exc:
            raise DeadlineExceededError(f"{url}: no complete answer in time.") from exc
        except (httpx.HTTPError, httpx.InvalidURL) as exc:
            raise _error(exc, url) from exc
        return body.answer(response)

    async def close(self) -> None:
        await self._client.aclose()


class HttpxTransport:
    """The same for threads, for proxies and for those who ask for it.

    httpx's own blocking client gives all of the time to each piece of an answer's head, so that a call could take for
    ever: these are on an event loop in a thread of the transport's own.
    """

    def __init__(self, address: Address, options: ClientOptions) -> None:
        self._url = address.http_url
        self._make = partial(AsyncHttpxTransport, address, options)
        self._transport = self._make()
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._process = os.getpid()
        self._closed = False

    def send(self, send: Send[object]) -> Answer:
        with self._lock:
            loop = self._running()
            call = asyncio.run_coroutine_threadsafe(self._transport.send(send), loop)
        try:
            return call.result()
        except futures.CancelledError as exc:
            raise self._gone() from exc
        finally:
            # A thread that is interrupted while it waits breaks its call off.
            call.cancel()

    def close(self) -> None:
        with self._lock:
            self._closed = True
        # A parent's loop does not run in a child.
        if self._loop is not None and self._process == os.getpid():
            self._stop()
            self._thread.join()

    def _running(self) -> asyncio.AbstractEventLoop:
        if self._closed:
            raise self._gone()
        if self._process != os.getpid():
            self._transport, self._loop, self._process = self._make(), None, os.getpid()
        if self._loop is None:
            self._loop = loop = asyncio.new_event_loop()
            arguments = (loop, self._transport)
            self._thread = threading.Thread(target=_run, args=arguments, name="modelyard-httpx", daemon=True)
            self._thread.start()
            # A client that nobody closes takes its thread along, too.
            self._stop = weakref.finalize(self, loop.call_soon_threadsafe, loop.stop)
        return self._loop

    def _gone(self) -> UnavailableError:
        return UnavailableError(f"This client of {self._url} was closed; connect again.")


def _run(loop: asyncio.AbstractEventLoop, transport: AsyncHttpxTransport) -> None:
    with contextlib.closing(loop):
        loop.run_forever()
        loop.run_until_complete(_end(transport))


async def _end(transport: AsyncHttpxTransport) -> None:
    own = {asyncio.current_task()}
    for call in asyncio.all_tasks() - own:
        call.cancel()
    await asyncio.gather(*asyncio.all_tasks() - own, return_exceptions=True)
    await transport.close()
    # httpx's generators of an answer that was not read to its end are closed by tasks, one after the other.
    while await asyncio.sleep(0, True) and (left := asyncio.all_tasks() - own):
        await asyncio.gather(*left, return_exceptions=True)


class _Body:
    """Parts of an answer, held to the limit on its size: httpx inflates all of what has come before anybody sees it."""

    def __init__(self, url: str, options: ClientOptions) -> None:
        self._url, self._limit = url, options.max_message_bytes
        self._size = 0
        self._parts: list[bytes] = []

    def add(self, part: bytes) -> None:
        self._parts.append(part)
        self._size += len(part)
        if self._limit is not None and self._size > self._limit:
            raise too_large(self._url, self._limit)

    def answer(self, response: httpx.Response) -> Answer:
        data, encoding = b"".join(self._parts), response.headers.get("content-encoding", "identity").lower()
        if encoding != "identity":
            data = inflated(data, encoding, self._url, self._limit)
        return answer_of(response.status_code, dict(response.headers), data, self._url)


def _context(address: Address, options: ClientOptions) -> ssl.SSLContext:
    # Reading the system's roots takes longer than everything else here: only where they are needed.
    return ssl_context(options.tls) if address.secure else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def _no_cookies() -> CookieJar:
    # A server could have each request carry more of them.
    return CookieJar(DefaultCookiePolicy(allowed_domains=()))


def _limits(options: ClientOptions) -> httpx.Limits:
    return httpx.Limits(
        max_connections=options.max_connections,
        max_keepalive_connections=options.max_connections,
        keepalive_expiry=options.keepalive_s,
    )


def _error(exc: httpx.HTTPError | httpx.InvalidURL, url: str) -> ModelyardError:
    reason = str(exc).rstrip(".") or type(exc).__name__
    if isinstance(exc, httpx.TimeoutException):
        return DeadlineExceededError(f"{url}: no answer in time ({type(exc).__name__}).")
    if isinstance(exc, httpx.LocalProtocolError):
        # Its text may hold a header's value, which may be a key.
        return InvalidRequestError(
            f"{url} cannot be asked: a header's value (token, metadata) has a character that HTTP does not allow, or a "
            "space around it."
        )
    if isinstance(exc, (httpx.InvalidURL, httpx.UnsupportedProtocol)):
        return InvalidRequestError(f"{url} cannot be asked: {reason}.")
    # A server that goes away closes the connection without an answer, which httpx counts as a protocol error.
    if isinstance(exc, (httpx.NetworkError, httpx.ProxyError)) or "disconnected" in reason:
        return UnavailableError(f"{url} cannot be reached: {reason}. Is the server running?")
    return ProtocolError(f"{url} did not answer in HTTP as expected: {type(exc).__name__}: {reason}.")
