"""Options and answers of the REST doors, with no server in them."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from modelyard.errors import (
    DeadlineExceededError,
    ModelyardError,
    OverloadedError,
    RequestTooLargeError,
    SignatureNotFoundError,
    UnauthenticatedError,
)
from modelyard.serving.access import Access, Scope, Ticket
from modelyard.serving.handlers.rest._urls import NoSuchUrl
from modelyard.serving.requests import Caller, unexpected
from modelyard.serving.transports.http import Answer, HttpRequest
from modelyard.wire import http_status_of

_LOG = logging.getLogger("modelyard.serving.rest")

JSON = (b"content-type", b"application/json")


@dataclass(frozen=True, kw_only=True)
class RestOptions:
    """What the REST API offers, and its limits.

    Attributes:
        max_body_bytes: Largest request body, before and after decompression.
        max_json_depth: Deepest nesting of a JSON body.
        timeout_s: Time that a request may take.
        cors: Answers carry CORS headers.
        strict_json: NaN and infinities are refused in answers.
        extensions: JSON may hold half, bfloat16 and uint16, and inputs that
            have defaults may be left out; upstream refuses both.
        metrics_paths: Where the Prometheus page is.
    """

    max_body_bytes: int = 100 << 20
    max_json_depth: int = 100
    timeout_s: float = 30.0
    cors: bool = False
    strict_json: bool = False
    extensions: bool = False
    metrics_paths: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Page:
    """A JSON page.

    Attributes:
        scope: What its readers need.
        text: Makes it, on a worker thread.
    """

    scope: Scope
    text: Callable[[], str]


#: Answers what is below a path that is not TensorFlow Serving's.
HttpHandler = Callable[[HttpRequest], Awaitable[Answer]]


def admit(access: Access, request: HttpRequest, scope: Scope, model: str = "") -> Ticket:
    """Lets a request in.

    Args:
        access: Decides.
        request: The request, whose caller learns its name.
        scope: What it wants.
        model: With which model; empty for the server as a whole.

    Raises:
        OverloadedError: The caller's quota is used up.
        PermissionDeniedError: The caller may not.
        UnauthenticatedError: Nobody knows the caller, who would have to be known.
    """
    if not access.asks(scope):
        return Ticket()
    ticket = access.admit(request.credentials, scope, model)
    if request.caller is not None:
        request.caller.principal, request.caller.charge = ticket.principal, ticket.charge
        if request.caller.facts is not None:
            request.caller.facts.principal = ticket.principal
    return ticket


def json_answer(text: str) -> Answer:
    """An answer of JSON text.

    Args:
        text: The text.
    """
    return Answer(status=200, body=text.encode(), headers=[JSON])


def error_answer(error: BaseException, request: str, *, caller: Caller | None = None, indent: int | None = 4) -> Answer:
    """The answer to a request that failed.

    Args:
        error: Why.
        request: What to call it in the log.
        caller: Whose request it is; None where that is not known.
        indent: Of the JSON text.
    """
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
    body = f'{{"error": {quoted}}}' if indent is None else f'{{\n{" " * indent}"error": {quoted}\n}}'
    # An error may quote bytes of the request that are no text.
    return Answer(status=status, body=body.encode("utf-8", "replace"), headers=headers)


def hints_of(error: ModelyardError) -> list[tuple[bytes, bytes]]:
    """Header fields that tell a client what to do about an error.

    Args:
        error: The error.
    """
    if isinstance(error, OverloadedError):
        # The smallest number that the header can say is one second.
        return [(b"retry-after", b"%d" % max(1, math.ceil(error.retry_after_s or 0.0)))]
    # HTTP has 401 always say which kind of credentials is expected.
    return [(b"www-authenticate", b'Bearer realm="modelyard"')] if isinstance(error, UnauthenticatedError) else []


def reworded(error: BaseException, signature: str) -> BaseException:
    """Upstream's REST words for a signature that there is not, which differ from gRPC's.

    Args:
        error: Any error of a prediction.
        signature: The signature asked for.
    """
    if not isinstance(error, SignatureNotFoundError):
        return error
    return SignatureNotFoundError(f'Serving signature name: "{signature}" not found in signature def. {error.message}')


def late(options: RestOptions) -> DeadlineExceededError:
    """The error of a request whose time is over.

    Args:
        options: Limits.
    """
    return DeadlineExceededError(f"No answer within {options.timeout_s:g} s, the server's --rest_api_timeout_in_ms.")


def too_large(options: RestOptions) -> RequestTooLargeError:
    """The error of a request whose body is larger than allowed.

    Args:
        options: Limits.
    """
    return RequestTooLargeError(
        f"The request body has more than {options.max_body_bytes} bytes; send fewer rows per request, or use gRPC."
    )
