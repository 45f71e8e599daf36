"""What all gRPC methods share: bytes in, bytes out, every error mapped."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import ssl
import time
import urllib.parse
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import grpc
from google.protobuf.message import DecodeError

from modelyard.errors import InvalidRequestError, ModelyardError
from modelyard.serving.access import UNIX_SOCKET, Access, Credentials, Principal, Scope, Ticket, admitted
from modelyard.serving.metrics import Metrics
from modelyard.serving.requests import PredictRequest, current_request, trace_id_of, unexpected
from modelyard.serving.transports.grpc._retry import retry_metadata
from modelyard.serving.transports.grpc._types import Metadata
from modelyard.wire import Method, grpc_status_of

_LOG = logging.getLogger("modelyard.serving.grpc")

#: Upstream cuts messages there, because some proxies refuse long trailers.
MAX_STATUS_MESSAGE = 1024
_TRUNCATED = "...TRUNCATED"
#: What upstream counts (MultiInference, metadata and status calls are not among it), and what v2 has instead.
_COUNTED = ("Predict", "Classify", "Regress", "ModelInfer")

Context = grpc.aio.ServicerContext[bytes, bytes]
Handler = Callable[[Any, Context], Awaitable[bytes]]


#: What somebody showed, and who that is; None for anybody.
Caller: TypeAlias = tuple[Credentials, Principal] | None


@dataclass(frozen=True, kw_only=True)
class Guard:
    """What a method's callers need.

    Attributes:
        access: Decides.
        scope: The scope; None for what is open to all.
        model: The model that a message is about; None for methods about the server as a whole.
    """

    access: Access
    scope: Scope | None
    model: Callable[[Any], str] | None = None

    def identify(self, context: Context) -> Caller:
        """Who calls, before the message is read.

        Args:
            context: The call's.

        Raises:
            PermissionDeniedError: The caller has the scope for no model.
            UnauthenticatedError: Nobody knows the caller, who would have to be known.
        """
        if self.scope is None or not self.access.asks(self.scope):
            return None
        credentials = credentials_of(context)
        return credentials, self.access.identify(credentials, self.scope)

    def admit(self, caller: Caller, message: Any) -> Ticket:
        """Lets a call in.

        Args:
            caller: Who calls.
            message: Its message.

        Raises:
            OverloadedError: The caller's quota is used up.
            PermissionDeniedError: The caller may not.
        """
        if caller is None or self.scope is None:
            return Ticket()
        credentials, principal = caller
        model = "" if self.model is None else self.model(message)
        return self.access.enter(principal, self.scope, model, credentials)


def credentials_of(context: Context) -> Credentials:
    """What a call's client shows of itself.

    Args:
        context: The call's.
    """
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
    """The IP address in gRPC's name of a peer.

    Args:
        peer: Such as ``ipv4:127.0.0.1:50000``, ``ipv6:[::1]:50000`` or ``unix:``.

    Returns:
        The address; ``UNIX_SOCKET`` for a client of a UNIX socket; None where the name says no address.
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
    parse: Callable[[bytes], Any] | None = None,
) -> grpc.RpcMethodHandler[bytes, bytes]:
    """Wraps a handler for registration.

    Args:
        method: The method that it answers.
        handler: Called with the parsed request and the call's context; returns
            the serialized response.
        metrics: Where requests are counted.
        guard: What callers need.
        parse: Parses a request; None for the method's own message.
    """
    counted = method.name in _COUNTED
    read = parse or method.request.FromString

    async def call(data: bytes, context: Context) -> bytes:
        started = time.perf_counter()
        name, code, text, client = "", "OK", "", ""
        trailers: Metadata = ()
        try:
            caller = guard.identify(context)
            message = _parsed(method, read, data)
            facts = current_request.get().facts
            if counted or facts:
                name = _model_of(message)
            if facts:
                facts.model = name
            with guard.admit(caller, message) as ticket:
                if facts:
                    facts.principal = ticket.principal
                client = ticket.principal
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


def _parsed(method: Method, parse: Callable[[Any], Any], data: Any) -> Any:
    try:
        return parse(data)
    except DecodeError as exc:
        raise InvalidRequestError(
            f"The body of {method.path} is not a {method.request.DESCRIPTOR.full_name}: {exc}"
        ) from exc


def _model_of(message: Any) -> str:
    """The model that a request of any method names; empty for none."""
    spec = message.spec if isinstance(message, PredictRequest) else getattr(message, "model_spec", None)
    name: str = getattr(message, "model_name", "") or getattr(message, "name", "") if spec is None else spec.name
    return name


def _trace_in(context: Context) -> str:
    values = [value for key, value in context.invocation_metadata() or () if key == "traceparent"]
    return trace_id_of(str(values[0])) if values else ""


def failure_of(error: BaseException, path: str) -> tuple[str, str]:
    """Status and message that an error is answered with.

    Args:
        error: The error.
        path: The method's path, for the log.
    """
    if isinstance(error, ModelyardError):
        return grpc_status_of(error), truncate(error.message)
    return "INTERNAL", unexpected(error, path, current_request.get().request_id, _LOG)


def truncate(text: str) -> str:
    """Cuts a status message to what upstream sends at most.

    Args:
        text: The message.
    """
    data = text.encode()
    if len(data) <= MAX_STATUS_MESSAGE:
        return text
    return data[: MAX_STATUS_MESSAGE - len(_TRUNCATED)].decode(errors="ignore") + _TRUNCATED
