"""What the server needs of whoever answers without a task."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from modelyard.serving import http
from modelyard.serving._requests import Caller
from modelyard.serving.http import Answer

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


class Application(http.Application, Protocol):
    """Answers requests, those of usual heads without a task."""

    #: Larger bodies are answered by :meth:`answer`, whatever :meth:`find` says.
    max_short_bytes: int

    def find(self, head: Head) -> Begin | None:
        """Who answers requests with this head without a task; None for :meth:`answer`."""
        ...
