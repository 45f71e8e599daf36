"""Bytes over gRPC: I/O and the mapping of gRPC's errors, nothing else."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

import grpc

from modelyard.clients._address import Address
from modelyard.clients._flows import Call
from modelyard.errors import DeadlineExceededError, ModelyardError, UnavailableError
from modelyard.wire import error_from_grpc

_OPTIONS = [
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    # The defaults wait up to two minutes before they look again at a server that was restarted.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2000),
]


class GrpcTransport:
    """A blocking gRPC channel.

    Args:
        address: Where the server is.
    """

    def __init__(self, address: Address) -> None:
        self._url = address.url
        if address.secure:
            self._channel = grpc.secure_channel(address.authority, _credentials(), options=_OPTIONS)
        else:
            self._channel = grpc.insecure_channel(address.authority, options=_OPTIONS)
        self._methods: dict[str, grpc.UnaryUnaryMultiCallable[bytes, bytes]] = {}

    def send(self, call: Call, timeout_s: float) -> bytes:
        """Sends one request and waits for its answer.

        Args:
            call: The request.
            timeout_s: Seconds until it is given up, on both sides.

        Raises:
            ModelyardError: The class that the status code stands for.
        """
        method = self._methods.get(call.path)
        if method is None:
            method = self._methods[call.path] = self._channel.unary_unary(call.path, None, None)
        try:
            return method(call.body or b"", timeout=timeout_s)
        except grpc.RpcError as exc:
            raise self._error(exc) from exc

    def close(self) -> None:
        """Closes the channel."""
        self._channel.close()

    def _error(self, exc: Any) -> ModelyardError:
        # Any: an error of a call is a grpc.Call too, which the type grpc.RpcError does not say.
        code, details = exc.code().name, exc.details()
        error = error_from_grpc(code, details or f"The server gave no reason, only the code {code}.")
        if isinstance(error, (UnavailableError, DeadlineExceededError)):
            return type(error)(f"{self._url}: {error.message}")
        return error


def _credentials() -> grpc.ChannelCredentials:
    # gRPC brings a list of roots of its own; the system's, where there is one file of them, knows private CAs too.
    cafile = ssl.get_default_verify_paths().cafile
    return grpc.ssl_channel_credentials(None if cafile is None else Path(cafile).read_bytes())
