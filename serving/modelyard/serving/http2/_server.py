"""A gRPC server on asyncio: as ``grpc.aio.server``, as far as this package needs one, and a few times as fast."""

from __future__ import annotations

import asyncio
import contextlib
import os
import ssl
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import grpc

from modelyard.errors import ConfigurationError
from modelyard.serving._listen import BACKLOG, listen
from modelyard.serving._requests import FIELDS_OF_ONE_CALL
from modelyard.serving._tls import TlsConfig
from modelyard.serving.grpc import GrpcLimits, limits_of
from modelyard.serving.http2._calls import Begin, Call, Head, read_head, refuse_foreign, request_id_in
from modelyard.serving.http2._connection import Connection
from modelyard.serving.http2._hpack import Fields
from modelyard.serving.http2._outgoing import Stream

_NOTICE_S = 0.3
_MAX_HEADS = 1024


@dataclass(frozen=True, kw_only=True)
class Http2Options(GrpcLimits):
    """Limits of the server.

    Attributes:
        reuse_port: Other processes may listen on the same port.
        wrong_port: What clients are told that do not speak gRPC.
    """

    reuse_port: bool = False
    wrong_port: str = "This is a gRPC port."


def options_of(arguments: Sequence[tuple[str, int | str]]) -> Http2Options | None:
    """As :func:`modelyard.serving.grpc.limits_of`, for this server.

    Args:
        arguments: Names and values.
    """
    limits = limits_of(arguments)
    return None if limits is None else Http2Options(**asdict(limits))


class Http2Server:
    """Serves gRPC methods.

    Args:
        options: Limits.
    """

    def __init__(self, options: Http2Options) -> None:
        self._options = options
        self.max_streams = options.max_streams
        self.wrong_port = options.wrong_port
        self._handlers: dict[str, Any] = {}
        self._short: dict[str, Begin] = {}
        self._addresses: list[tuple[str, TlsConfig | None]] = []
        self._servers: list[asyncio.Server] = []
        self._sockets: list[str] = []
        self._connections: set[Connection] = set()
        self._running: set[asyncio.Task[None]] = set()
        self._leaving: set[asyncio.Task[None]] = set()
        self._stopping = False
        #: Heads by their fields: clients say the same again and again.
        self._heads: dict[Fields, Head] = {}

    def add_service(self, service: str, methods: Mapping[str, grpc.RpcMethodHandler[Any, Any]]) -> None:
        """Adds methods, which must be coroutines.

        Args:
            service: Full name of the service.
            methods: Handlers by method.
        """
        for name, handler in methods.items():
            self._handlers[f"/{service}/{name}"] = handler

    def add_registered_method_handlers(
        self, service: str, methods: Mapping[str, grpc.RpcMethodHandler[Any, Any]]
    ) -> None:
        """Adds methods, as the code that protoc generates asks a server to."""
        self.add_service(service, methods)

    def add_generic_rpc_handlers(self, _: Sequence[Any]) -> None:
        """Does nothing: generated code registers its methods one by one as well."""

    def add_short_way(self, path: str, begin: Begin) -> None:
        """Lets a unary method be answered without a task.

        Args:
            path: The method's path; it must have been added.
            begin: Answers it.
        """
        self._short[path] = begin

    def add_port(self, address: str, tls: TlsConfig | None = None) -> None:
        """Adds an address to listen on.

        Args:
            address: ``host:port``, or ``unix:path``.
            tls: Key and certificate; None for plain text.
        """
        self._addresses.append((address, tls))

    async def start(self) -> None:
        """Opens the ports.

        Raises:
            ConfigurationError: One cannot be listened on.
        """
        loop = asyncio.get_running_loop()
        for address, tls in self._addresses:
            try:
                if address.startswith("unix:"):
                    path = address.removeprefix("unix:")
                    with contextlib.suppress(FileNotFoundError):
                        os.unlink(path)
                    server = await loop.create_unix_server(self._protocol, path, backlog=BACKLOG)
                    self._sockets.append(path)
                else:
                    context = None if tls is None else _context(tls)
                    listener = listen(int(address.rpartition(":")[2]), reuse_port=self._options.reuse_port)
                    server = await loop.create_server(self._protocol, sock=listener, ssl=context, backlog=BACKLOG)
            except OSError as exc:
                raise ConfigurationError(
                    f"gRPC cannot listen on {address}: {exc.strerror}. Is the port in use? Choose another with --port."
                ) from exc
            self._servers.append(server)

    def _protocol(self) -> Connection:
        connection = Connection(self, self._connections.discard)
        self._connections.add(connection)
        if self._options.max_age_s:
            asyncio.get_running_loop().call_later(self._options.max_age_s, self._age, connection)
        return connection

    def _age(self, connection: Connection) -> None:
        if connection in self._connections:
            task = asyncio.get_running_loop().create_task(connection.leave(_NOTICE_S))
            self._leaving.add(task)
            task.add_done_callback(self._leaving.discard)

    def opened(self, stream: Stream, fields: Fields) -> None:
        """A client has begun a call."""
        common = tuple([field for field in fields if field[0] not in FIELDS_OF_ONE_CALL])
        head = self._heads.get(common)
        if head is None:
            head = read_head(common, self._handlers, self._short)
            if len(self._heads) >= _MAX_HEADS:
                self._heads.clear()
            self._heads[common] = head
        if head.foreign:
            refuse_foreign(stream, fields, self.wrong_port)
            return
        Call(
            stream,
            head,
            fields,
            max_bytes=self._options.max_message_bytes,
            running=self._running,
            request_id=request_id_in(fields) if len(common) < len(fields) else "",
        )

    async def stop(self, grace_s: float) -> None:
        """Takes no new calls, and answers those that were sent.

        Args:
            grace_s: Seconds to wait before running calls are cancelled.
        """
        loop = asyncio.get_running_loop()
        end = loop.time() + grace_s
        for server in self._servers:
            server.close()
        notice = min(grace_s, _NOTICE_S)
        await asyncio.gather(*(connection.leave(notice) for connection in list(self._connections)))
        while self._connections and loop.time() < end:
            await asyncio.sleep(0.01)
        for connection in list(self._connections):
            connection.abort()
        for task in list(self._running):
            task.cancel()
        for path in self._sockets:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
        # One turn of the loop, so that the last bytes and the closings go out.
        await asyncio.sleep(0)


class WrongPort:
    """Answers every gRPC call on a port that is not gRPC's.

    Args:
        text: What callers are told.
    """

    max_streams = 100

    def __init__(self, text: str) -> None:
        self.wrong_port = text
        self._running: set[asyncio.Task[None]] = set()

    def opened(self, stream: Stream, fields: Fields) -> None:
        """A client has begun a call."""
        head = Head(path="", refusal=(grpc.StatusCode.UNIMPLEMENTED, self.wrong_port))
        Call(stream, head, fields, max_bytes=0, running=self._running, request_id=request_id_in(fields))

    def connection(self, closed: Callable[[], None]) -> asyncio.Protocol:
        """A connection whose calls are answered so.

        Args:
            closed: Called when it is gone.
        """
        return Connection(self, lambda _: closed())


def _context(tls: TlsConfig) -> ssl.SSLContext:
    context = tls.context()
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # gRPC's clients insist on it.
    context.set_alpn_protocols(["h2"])
    return context
