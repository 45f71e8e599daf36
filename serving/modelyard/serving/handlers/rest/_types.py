"""Options and answers of the REST APIs, with no server in them."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from modelyard.errors import ModelyardError, OverloadedError, UnauthenticatedError
from modelyard.serving.access import Access, Scope, Ticket
from modelyard.serving.handlers.rest._urls import NoSuchUrl
from modelyard.serving.metrics import Metrics
from modelyard.serving.requests import Caller, trace_id_of, unexpected
from modelyard.serving.transports.http import Answer, HttpRequest
from modelyard.wire import grpc_status_of, http_status_of

_LOG = logging.getLogger("modelyard.serving.rest")

JSON = (b"content-type", b"application/json")


@dataclass(frozen=True, kw_only=True)
class Page:
    scope: Scope
    text: Callable[[HttpRequest], str]


#: Answers what is below a path that is not TensorFlow Serving's.
HttpHandler = Callable[[HttpRequest], Awaitable[Answer]]


def admit(access: Access, request: HttpRequest, scope: Scope, model: str = "") -> Ticket:
    if not access.asks(scope):
        return Ticket()
    credentials, caller = request.credentials, request.caller
    principal = access.find(credentials)
    if caller is not None:
        # Before anything is refused: metrics and logs name the caller in any case.
        caller.principal = principal.name
        if caller.facts is not None:
            caller.facts.principal = principal.name
    access.check(principal, scope, credentials)
    ticket = access.enter(principal, scope, model, credentials)
    if caller is not None:
        caller.charge = ticket.charge
    return ticket


def error_answer(error: BaseException, request: str, *, caller: Caller | None = None) -> Answer:
    headers = [JSON]
    if isinstance(error, ModelyardError):
        status, text = http_status_of(error), error.message
        headers += hints_of(error)
    elif isinstance(error, NoSuchUrl):
        status, text = 404, str(error)
    else:
        status, text = 500, unexpected(error, request, caller.request_id if caller else "-", _LOG)
    quoted = json.dumps(text, ensure_ascii=False)
    # What json.dumps writes, whose indented form leaves cycles behind.
    body = f'{{\n    "error": {quoted}\n}}'
    # An error may quote bytes of the request that are no text.
    return Answer(status=status, body=body.encode("utf-8", "replace"), headers=headers)


def hints_of(error: ModelyardError) -> list[tuple[bytes, bytes]]:
    """Header fields that tell a client what to do about an error."""
    if isinstance(error, OverloadedError):
        # The smallest number that the header can say is one second.
        return [(b"retry-after", b"%d" % max(1, math.ceil(error.retry_after_s or 0.0)))]
    # HTTP has 401 always say which kind of credentials is expected.
    return [(b"www-authenticate", b'Bearer realm="modelyard"')] if isinstance(error, UnauthenticatedError) else []


@contextmanager
def counted(metrics: Metrics, access: Access, request: HttpRequest, *, model: str, api: str) -> Iterator[None]:
    """Admits one prediction and counts it, whatever becomes of it; raises the problem that its transport found."""
    started = time.perf_counter()
    code = "OK"
    try:
        with admit(access, request, "predict", model):
            if request.problem is not None:
                raise request.problem
            yield
    except ModelyardError as exc:
        code = grpc_status_of(exc)
        raise
    except asyncio.CancelledError:
        code = "CANCELLED"
        raise
    except Exception:
        code = "INTERNAL"
        raise
    finally:
        seconds = time.perf_counter() - started
        trace = trace_id_of(request.headers.get("traceparent", ""))
        client = "" if request.caller is None else request.caller.principal
        metrics.record_request(
            model, api=api, entrypoint="REST", status=code, seconds=seconds, trace=trace, client=client
        )
