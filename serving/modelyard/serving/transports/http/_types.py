"""Requests and answers of HTTP, and what a transport needs of whoever answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from modelyard.errors import ModelyardError
from modelyard.serving.access import Credentials
from modelyard.serving.requests import Caller

Headers = list[tuple[bytes, bytes]]


# Made for every request: a frozen dataclass would set each of its attributes by a call.
@dataclass(kw_only=True, slots=True)
class Answer:
    """What goes back for one request.

    Attributes:
        status: HTTP status.
        body: The body.
        headers: Its headers, without the length.
    """

    status: int
    body: bytes
    headers: Headers


@dataclass(frozen=True, kw_only=True)
class HttpRequest:
    """One request.

    Attributes:
        method: Such as ``POST``.
        path: As sent, percent escapes and all.
        query: What follows the question mark.
        headers: By lower-case name.
        body: As sent, compressed or not.
        client: The caller's IP address; None where it is not known.
        caller: Who waits for the answer; None for somebody who waits for ever.
        problem: Why the body did not come whole; None where it did.
        certificate: The client's in DER, verified; None without one.
    """

    method: str
    path: str
    query: str
    # Secrets are among them.
    headers: Mapping[str, str] = field(repr=False)
    body: bytes
    client: str | None
    caller: Caller | None = None
    problem: ModelyardError | None = None
    certificate: bytes | None = None

    @property
    def credentials(self) -> Credentials:
        """What the caller shows of itself."""
        return Credentials(
            authorization=self.headers.get("authorization"),
            key=self.headers.get("x-api-key"),
            certificate=self.certificate,
            # A browser calls for whatever page it shows: that is nobody on this machine.
            host=None if "origin" in self.headers else self.client,
        )


class Application(Protocol):
    """Answers requests."""

    #: Largest body that is read.
    max_body_bytes: int
    #: Seconds that a body may take to come.
    timeout_s: float

    def late(self) -> ModelyardError:
        """The error of a request whose time is over."""
        ...

    def too_large(self) -> ModelyardError:
        """The error of a request whose body is larger than allowed."""
        ...

    async def answer(self, request: HttpRequest) -> Answer:
        """Answers every request with something, whatever happens."""
        ...
