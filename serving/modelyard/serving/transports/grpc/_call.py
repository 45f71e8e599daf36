"""What all gRPC methods share: bytes in, bytes out, every error mapped."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import math
import ssl
import time
import urllib.parse
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import grpc
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import DecodeError

from modelyard.errors import InvalidRequestError, ModelyardError, OverloadedError
from modelyard.serving.access import UNIX_SOCKET, Access, Credentials, Principal, Scope, Ticket, admitted
from modelyard.serving.metrics import Metrics
from modelyard.serving.requests import PredictRequest, current_request, trace_id_of, unexpected
from modelyard.serving.transports.grpc._types import Metadata
from modelyard.wire import Method, grpc_status_of, varint

_LOG = logging.getLogger("modelyard.serving.grpc")

#: Upstream cuts messages there, because some proxies refuse long trailers.
MAX_STATUS_MESSAGE = 1024
_TRUNCATED = "...TRUNCATED"
_RETRY_INFO = "type.googleapis.com/google.rpc.RetryInfo"
#: What upstream counts (MultiInference, metadata and status calls are not among it), and what v2 has instead.
_COUNTED = ("Predict", "Classify", "Regress", "ModelInfer")

Context = grpc.aio.ServicerContext[bytes, bytes]
Handler = Callable[[Any, Context], Awaitable[bytes]]


#: A caller's credentials and principal; None where none are needed.
Caller: TypeAlias = tuple[Credentials, Principal] | None


@dataclass(frozen=True, kw_only=True)
class Guard:
    """What a method's callers need."""

    access: Access
    #: The scope; None for what is open to all.
    scope: Scope | None
    #: The model that a message is about; None for methods about the server as a whole.
    model: Callable[[Any], str] | None = None

    def find(self, context: Context) -> Caller:
        """Who calls."""
        if self.scope is None or not self.access.asks(self.scope):
            return None
        credentials = credentials_of(context)
        return credentials, self.access.find(credentials)

    def check(self, caller: Caller) -> None:
        """Refuses who has no such scope at all, before the message is read."""
        if caller is not None and self.scope is not None:
            credentials, principal = caller
            self.access.check(principal, self.scope, credentials)

    def identify(self, context: Context) -> Caller:
        caller = self.find(context)
        self.check(caller)
        return caller

    def admit(self, caller: Caller, message: object) -> Ticket:
        if caller is None or self.scope is None:
            return Ticket()
        credentials, principal = caller
        model = "" if self.model is None else self.model(message)
        return self.access.enter(principal, self.scope, model, credentials)


def credentials_of(context: Context) -> Credentials:
    fields: dict[str, str] = {}
    for key, value in context.invocation_metadata() or ():
        if key in ("authorization", "x-api-key"):
            text = value if isinstance(value, str) else value.decode("latin-1")
            # Two of them are as good as a wrong one.
            fields[key] = f"{fields[key]},{text}" if key in fields else text
    pem = next(iter(context.auth_context().get("x509_pem_cert", ())), None)
    return Credentials(
        authorization=fields.get("authorization"),
        key=fields.get("x-api-key"),
        certificate=None if pem is None else ssl.PEM_cert_to_DER_cert(pem.decode()),
        host=peer_host(context.peer()),
    )


def peer_host(peer: str) -> str | None:
    """The IP address in gRPC's name of a peer, such as ``ipv4:127.0.0.1:50000``.

    ``UNIX_SOCKET`` for a client of a UNIX socket; None where the name holds no address.
    """
    kind, _, rest = urllib.parse.unquote(peer).partition(":")
    if kind == "unix":
        return UNIX_SOCKET
    host = rest.rpartition(":")[0].strip("[]")
    try:
        return str(ipaddress.ip_address(host)) if kind in ("ipv4", "ipv6") else None
    except ValueError:
        return None


def unary(
    method: Method,
    handler: Handler,
    metrics: Metrics,
    guard: Guard,
    *,
    parse: Callable[[bytes], object] | None = None,
) -> grpc.RpcMethodHandler[bytes, bytes]:
    """Wraps a handler for registration: it is called with the parsed request, and returns the serialized response."""
    counted = method.name in _COUNTED
    read = parse or method.request.FromString

    async def call(data: bytes, context: Context) -> bytes:
        started = time.perf_counter()
        name, code, text, client = "", "OK", "", ""
        trailers: Metadata = ()
        try:
            caller = guard.find(context)
            client = "" if caller is None else caller[1].name
            facts = current_request.get().facts
            if facts:
                facts.principal = client
            guard.check(caller)
            message = _parsed(method, read, data)
            if counted or facts:
                name = _model_of(message)
            if facts:
                facts.model = name
            with guard.admit(caller, message) as ticket:
                admitted.set(ticket)
                return await handler(message, context)
        except asyncio.CancelledError:
            code = "CANCELLED"
            raise
        except Exception as exc:
            code, text = failure_of(exc, method.path)
            trailers = retry_metadata(exc, text)
        finally:
            if counted:
                seconds = time.perf_counter() - started
                metrics.record_request(
                    name,
                    api=method.name,
                    entrypoint="GRPC",
                    status=code,
                    seconds=seconds,
                    trace=_trace_in(context),
                    client=client,
                )
        await context.abort(grpc.StatusCode[code], text, (*(context.trailing_metadata() or ()), *trailers))

    return grpc.unary_unary_rpc_method_handler(call)


def _parsed(method: Method, parse: Callable[[bytes], object], data: bytes) -> object:
    try:
        return parse(data)
    except DecodeError as exc:
        raise InvalidRequestError(
            f"The body of {method.path} is not a {method.request.DESCRIPTOR.full_name}: {exc}"
        ) from exc


def _model_of(message: object) -> str:
    """The model that a request of any method names; empty for none."""
    spec = message.spec if isinstance(message, PredictRequest) else getattr(message, "model_spec", None)
    name: str = getattr(message, "model_name", "") or getattr(message, "name", "") if spec is None else spec.name
    return name


def _trace_in(context: Context) -> str:
    values = [value for key, value in context.invocation_metadata() or () if key == "traceparent"]
    return trace_id_of(str(values[0])) if values else ""


def failure_of(error: BaseException, path: str) -> tuple[str, str]:
    """Status and message that an error is answered with."""
    if isinstance(error, ModelyardError):
        return grpc_status_of(error), truncate(error.message)
    return "INTERNAL", unexpected(error, path, current_request.get().request_id, _LOG)


def truncate(text: str) -> str:
    """Cuts a status message to what upstream sends at most."""
    data = text.encode()
    if len(data) <= MAX_STATUS_MESSAGE:
        return text
    return data[: MAX_STATUS_MESSAGE - len(_TRUNCATED)].decode(errors="ignore") + _TRUNCATED


def retry_metadata(error: BaseException, text: str) -> Metadata:
    """Trailing metadata of a failed call.

    ``grpc-retry-pushback-ms`` is gRPC's own (proposal A6); ``google.rpc.RetryInfo``
    in ``grpc-status-details-bin`` is what Google's client libraries look for.
    """
    if not isinstance(error, OverloadedError) or error.retry_after_s is None:
        return ()
    milliseconds = math.ceil(error.retry_after_s * 1000)
    pause = Duration(seconds=milliseconds // 1000, nanos=milliseconds % 1000 * 1_000_000)
    # The messages google.rpc.Status and RetryInfo are not among protobuf's own, and small enough to be written here.
    detail = AnyMessage(type_url=_RETRY_INFO, value=_field(1, pause.SerializeToString()))
    code: int = grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]
    status = b"\x08" + varint(code) + _field(2, text.encode()) + _field(3, detail.SerializeToString())
    return (("grpc-retry-pushback-ms", str(milliseconds)), ("grpc-status-details-bin", status))


def _field(number: int, data: bytes) -> bytes:
    return bytes([number << 3 | 2]) + varint(len(data)) + data
