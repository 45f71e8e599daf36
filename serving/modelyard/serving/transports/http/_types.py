"""Requests and answers of HTTP, and the application that a transport calls."""

from __future__ import annotations

import ipaddress
import json
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol
from urllib.parse import urlsplit

from modelyard.errors import DeadlineExceededError, ModelyardError, RequestTooLargeError
from modelyard.serving.access import Credentials
from modelyard.serving.requests import Caller, unexpected

_LOG = logging.getLogger("modelyard.serving.rest")

Headers = list[tuple[bytes, bytes]]

#: They change nothing, and browsers keep answers from pages of other sites (RFC 9110, section 9.2.1).
_SAFE_METHODS = ("GET", "HEAD", "OPTIONS")


# Made for every request: a frozen dataclass would set each of its attributes by a call.
@dataclass(kw_only=True, slots=True)
class Answer:
    """What goes back for one request."""

    status: int
    body: bytes
    #: Its headers, without the length.
    headers: Headers


@dataclass(frozen=True, kw_only=True)
class HttpRequest:
    """One request."""

    method: str
    #: As sent, percent escapes and all.
    path: str
    query: str
    # Secrets are among them.
    #: By lower-case name.
    headers: Mapping[str, str] = field(repr=False)
    body: bytes
    #: The caller's IP address; None where it is not known.
    client: str | None
    #: Who waits for the answer; None for a caller that always waits.
    caller: Caller | None = None
    #: Why the body did not come whole; None where it did.
    problem: ModelyardError | None = None
    #: The client's in DER, verified; None without one.
    certificate: bytes | None = None

    @property
    def is_foreign(self) -> bool:
        """Whether a page of another site had a browser send this."""
        site = self.headers.get("sec-fetch-site")
        if site is not None:
            return site not in ("same-origin", "none")
        # Browsers leave that out over plain http.
        origin = self.headers.get("origin")
        if origin is None:
            return False
        scheme, _, place = origin.partition("://")
        # A scheme's own port stands in no Origin, and some proxies write it into Host.
        return place != self.headers.get("host", "").removesuffix(":443" if scheme == "https" else ":80")

    @property
    def credentials(self) -> Credentials:
        """What the caller presents.

        Without what browsers add to requests of any page: a name and password that a person once gave for this
        server, and certificates.
        """
        authorization, certificate = self.headers.get("authorization"), self.certificate
        if self.is_foreign and self.method not in _SAFE_METHODS:
            certificate = None
            if authorization is not None and authorization[:6].lower() == "basic ":
                authorization = None
        return Credentials(
            authorization=authorization,
            key=self.headers.get("x-api-key"),
            certificate=certificate,
            # A browser sends requests of any page that it shows: they do not count as from this machine.
            host=self.client if "origin" not in self.headers and _is_own_name(self.headers.get("host", "")) else None,
        )


def _is_own_name(host: str) -> bool:
    """Whether Host names an address or localhost: a page may have its own name lead to this machine, and call that."""
    try:
        name = urlsplit(f"//{host}").hostname or ""
        return not name or name == "localhost" or bool(ipaddress.ip_address(name))
    except ValueError:
        return False


@dataclass(frozen=True, kw_only=True)
class HttpLimits:
    """The largest body that is read, and the seconds that a request may take."""

    max_body_bytes: int = 100 << 20
    timeout_s: float = 30.0

    def left_s(self, caller: Caller | None) -> float:
        """Seconds that a request may take from now on."""
        if caller is None or caller.deadline is None:
            return self.timeout_s
        return max(0.0, caller.deadline - time.monotonic())

    def late(self) -> DeadlineExceededError:
        """The error of a request whose time is over."""
        return DeadlineExceededError(f"No answer within {self.timeout_s:g} s, the server's --rest_api_timeout_in_ms.")

    def too_large(self) -> RequestTooLargeError:
        """The error of a request whose body is larger than allowed."""
        return RequestTooLargeError(
            f"The request body has more than {self.max_body_bytes} bytes; send fewer rows per request, or use gRPC."
        )


class Application(Protocol):
    """Answers requests."""

    @property
    def limits(self) -> HttpLimits: ...

    async def answer(self, request: HttpRequest) -> Answer:
        """Answers a request; what it raises is a bug, and answered by :func:`answer_of`."""
        ...


async def answer_of(app: Application, request: HttpRequest) -> Answer:
    """The application's answer; 500 where it raises, without which a client would wait for ever."""
    try:
        return await app.answer(request)
    except Exception as exc:
        request_id = "-" if request.caller is None else request.caller.request_id
        text = unexpected(exc, f"{request.method} {request.path}", request_id, _LOG)
        body = json.dumps({"error": text}).encode()
        return Answer(status=500, body=body, headers=[(b"content-type", b"application/json")])
