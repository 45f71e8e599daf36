"""Requests and answers of HTTP, and what the server needs of whoever answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from modelyard.errors import ModelyardError
from modelyard.serving._requests import Caller

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


#: Takes the answer; says whether it is the first.
Respond = Callable[[Answer], bool]


class Begin(Protocol):
    """Answers one request without a task."""

    def __call__(self, headers: Mapping[bytes, bytes], body: bytes | None, caller: Caller, respond: Respond) -> None:
        """Starts to answer, and calls back; the body is None where the request's time is over."""
        ...


@dataclass(frozen=True, kw_only=True)
class Head:
    """What the first lines of a request say. Clients send the same again and again: heads are kept.

    Attributes:
        method: Such as ``POST``.
        path: As sent, percent escapes and all.
        query: What follows the question mark.
        headers: By lower-case name, without those of this one request; several of
            one name are joined by commas.
        length: Bytes of the body that it was read from; None for a body in chunks.
        keep_alive: The client may send more on this connection.
        expects: The client waits for leave to send the body.
    """

    method: str
    path: str
    query: str
    headers: Mapping[bytes, bytes]
    length: int | None
    keep_alive: bool
    expects: bool

    @cached_property
    def texts(self) -> Mapping[str, str]:
        """The headers as text."""
        return {name.decode("latin-1"): value.decode("latin-1") for name, value in self.headers.items()}


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
    """

    method: str
    path: str
    query: str
    headers: Mapping[str, str]
    body: bytes
    client: str | None
    caller: Caller | None = None
    problem: ModelyardError | None = None


class Application(Protocol):
    """Answers requests."""

    #: Largest body that is read.
    max_body_bytes: int
    #: Larger bodies are answered by :meth:`answer`, whatever :meth:`find` says.
    max_short_bytes: int
    #: Seconds that a body, and an answer without a task, may take.
    timeout_s: float

    def find(self, head: Head) -> Begin | None:
        """Who answers requests with this head without a task; None for :meth:`answer`."""
        ...

    def late(self) -> ModelyardError:
        """The error of a request whose time is over."""
        ...

    def too_large(self) -> ModelyardError:
        """The error of a request whose body is larger than allowed."""
        ...

    async def answer(self, request: HttpRequest) -> Answer:
        """Answers every request with something, whatever happens."""
        ...
