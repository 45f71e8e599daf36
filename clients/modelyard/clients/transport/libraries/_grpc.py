"""Bytes over gRPC: I/O and the mapping of gRPC's errors, nothing else."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

import grpc

from modelyard.clients.protocols import Answer
from modelyard.clients.transport import Address, ClientOptions, Send, TlsOptions
from modelyard.clients.transport.lean import error_of_status
from modelyard.errors import ConfigurationError, ModelyardError, UnavailableError


class GrpcTransport:
    """A blocking gRPC channel."""

    def __init__(self, address: Address, options: ClientOptions) -> None:
        self._url = address.url
        arguments = _arguments(address, options)
        compression = _compression(options)
        if address.secure:
            credentials = _credentials(options.tls)
            self._channel = grpc.secure_channel(address.authority, credentials, arguments, compression)
        else:
            self._channel = grpc.insecure_channel(address.authority, arguments, compression)
        self._methods: dict[str, grpc.UnaryUnaryMultiCallable[bytes, bytes]] = {}

    def send(self, send: Send[object]) -> Answer:
        call = send.call
        method = self._methods.get(call.path)
        if method is None:
            method = self._methods[call.path] = self._channel.unary_unary(call.path, None, None)
        try:
            return Answer(method(call.body or b"", timeout=send.timeout_s, metadata=send.headers))
        except grpc.RpcError as exc:
            raise error_of(exc, self._url) from exc
        except ValueError as exc:
            # What gRPC says when another thread closes the channel.
            raise UnavailableError(f"{self._url}: {exc}") from exc

    def close(self) -> None:
        self._channel.close()


class AsyncGrpcTransport:
    """A gRPC channel of an event loop, opened by the first call."""

    def __init__(self, address: Address, options: ClientOptions) -> None:
        self._url = address.url
        self._authority = address.authority
        self._arguments = _arguments(address, options)
        self._compression = _compression(options)
        self._credentials = _credentials(options.tls) if address.secure else None
        self._channel: grpc.aio.Channel | None = None
        self._methods: dict[str, grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]] = {}

    async def send(self, send: Send[object]) -> Answer:
        """Sends one request and waits for its answer; cancelling the task cancels the call on the server."""
        call = send.call
        method = self._methods.get(call.path)
        if method is None:
            method = self._methods[call.path] = self._open().unary_unary(call.path, None, None)
        try:
            return Answer(await method(call.body or b"", timeout=send.timeout_s, metadata=send.headers))
        except grpc.aio.AioRpcError as exc:
            raise error_of(exc, self._url) from exc
        except grpc.aio.UsageError as exc:
            raise UnavailableError(f"{self._url}: {exc}") from exc

    async def close(self) -> None:
        if self._channel is not None:
            await self._channel.close(None)

    def _open(self) -> grpc.aio.Channel:
        # A channel belongs to the event loop that is running when it is made.
        if self._channel is None:
            if self._credentials is None:
                self._channel = grpc.aio.insecure_channel(self._authority, self._arguments, self._compression)
            else:
                self._channel = grpc.aio.secure_channel(
                    self._authority, self._credentials, self._arguments, self._compression
                )
        return self._channel


def error_of(exc: Any, url: str) -> ModelyardError:
    """The error that a failed call stands for."""
    return error_of_status(exc.code().name, exc.details(), exc.trailing_metadata() or (), url)


def _arguments(address: Address, options: ClientOptions) -> list[tuple[str, int | str]]:
    limit = options.max_message_bytes
    arguments: list[tuple[str, int | str]] = [
        ("grpc.max_receive_message_length", -1 if limit is None else limit),
        ("grpc.max_send_message_length", -1),
        # The defaults wait up to two minutes before they look again at a server that was restarted.
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 2000),
        # The client has retries of its own, with one budget for both transports.
        ("grpc.enable_retries", 0),
    ]
    if options.keepalive_s is not None:
        arguments.append(("grpc.keepalive_time_ms", int(options.keepalive_s * 1000)))
    name = options.tls.server_name if address.secure else None
    if name is not None:
        arguments.append(("grpc.ssl_target_name_override", name))
    if address.server_name is not None:
        if address.secure and name is None:
            arguments.append(("grpc.ssl_target_name_override", address.server_name))
        arguments.append(("grpc.default_authority", f"{address.server_name}:{address.port}"))
    return arguments


def _compression(options: ClientOptions) -> grpc.Compression | None:
    return None if options.compression is None else grpc.Compression.Gzip


def _credentials(tls: TlsOptions) -> grpc.ChannelCredentials:
    # gRPC brings a list of roots of its own; the system's, where there is one file of them, knows private CAs too.
    system = ssl.get_default_verify_paths().cafile
    ca = tls.ca if tls.ca is not None else None if system is None else Path(system)
    try:
        files = (None if path is None else path.read_bytes() for path in (ca, tls.key, tls.certificate))
        return grpc.ssl_channel_credentials(*files)
    except OSError as exc:
        raise ConfigurationError(f"The TLS file {exc.filename} cannot be read: {exc.strerror}.") from exc
