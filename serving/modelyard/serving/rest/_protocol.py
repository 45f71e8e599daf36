"""uvicorn's HTTP/1.1 protocol with a short way for small predictions: no task, no queue, one write."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from modelyard.serving._requests import PRIORITY_KEY, Caller
from modelyard.serving.rest._timeouts import Timeouts
from modelyard.serving.rest._types import Answer

_PRIORITY = PRIORITY_KEY.encode()

#: Takes the answer; says whether it is the first.
Respond = Callable[[Answer], bool]


class Begin(Protocol):
    """Answers one request."""

    def __call__(self, headers: Mapping[bytes, bytes], body: bytes | None, caller: Caller, respond: Respond) -> None:
        """Starts to answer, and calls back; the body is None where the request's time is over."""
        ...


class ShortWay(Protocol):
    """What the protocol needs of an application."""

    #: Answers tell clients that their connection ends.
    closing: bool
    #: Larger bodies take the long way.
    max_bytes: int
    timeouts: Timeouts

    def find(self, url: bytes) -> Begin | None:
        """Who answers a POST to this URL; None where it takes the long way."""
        ...

    def suits(self, headers: Mapping[bytes, bytes]) -> bool:
        """Whether nothing in the headers asks for more than the short way can."""
        ...


class Exchange:
    """One request on the short way, in the place of uvicorn's request-response cycle.

    Args:
        protocol: The connection.
        begin: Who answers it.
        headers: By lower-case name.
        timeouts: Ends it when its time is over.
        keep_alive: The client will send more.
    """

    __slots__ = ("_begin", "_body", "_headers", "_protocol", "_timeouts", "caller", "disconnected", "keep_alive",
                 "response_complete")  # fmt: skip

    def __init__(
        self,
        protocol: PredictProtocol,
        begin: Begin,
        headers: Mapping[bytes, bytes],
        timeouts: Timeouts,
        *,
        keep_alive: bool,
    ) -> None:
        self._protocol = protocol
        self._begin = begin
        self._headers = headers
        self._body = b""
        self._timeouts = timeouts
        timeouts.add(self, self._expire)
        self.caller = Caller(low_priority=headers.get(_PRIORITY) == b"low")
        self.keep_alive = keep_alive
        self.disconnected = False
        self.response_complete = False

    @property
    def message_event(self) -> Exchange:
        """What uvicorn sets when the connection is lost."""
        return self

    def set(self) -> None:
        """Takes note that the client has hung up."""
        self.caller.leave()

    def add(self, body: bytes) -> None:
        """Takes a piece of the body.

        Args:
            body: The piece.
        """
        self._body = self._body + body if self._body else body

    def run(self) -> None:
        """Has the request answered; its body is whole."""
        self._begin(self._headers, self._body, self.caller, self._respond)

    def _expire(self) -> None:
        self.caller.leave()
        # A body that comes now belongs to nobody.
        whole = self._protocol.forget(self)
        self.keep_alive = self.keep_alive and whole
        self._begin(self._headers, None, self.caller, self._respond)

    def _respond(self, answer: Answer) -> bool:
        if self.response_complete:
            return False
        self.response_complete = True
        self._timeouts.discard(self)
        if not self.disconnected:
            self._protocol.write_answer(self, answer)
        return True


class PredictProtocol(HttpToolsProtocol):
    """A connection.

    Args:
        short: Who answers on the short way.
        arguments: uvicorn's.
    """

    def __init__(self, *, short: ShortWay, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._short = short
        self._exchange: Exchange | None = None

    def on_message_begin(self) -> None:
        """A request begins."""
        self.url = b""
        self.expect_100_continue = False
        self.headers = []
        self._exchange = None

    def on_headers_complete(self) -> None:
        """Its headers are whole: which way does it take?"""
        if self.cycle is None or self.cycle.response_complete:
            self._exchange = self._shortened()
            if self._exchange is not None:
                self.cycle = self._exchange  # type: ignore[assignment]  # it has what uvicorn asks of one
                return
        url, headers, expect = self.url, self.headers, self.expect_100_continue
        super().on_message_begin()
        self.url, self.expect_100_continue = url, expect
        self.headers.extend(headers)
        super().on_headers_complete()

    def _shortened(self) -> Exchange | None:
        parser = self.parser
        if self.expect_100_continue or parser.get_method() != b"POST" or parser.get_http_version() != "1.1":
            return None
        begin = self._short.find(self.url)
        if begin is None or parser.should_upgrade():
            return None
        headers = dict(self.headers)
        length = headers.get(b"content-length", b"")
        if not length.isdigit() or int(length) > self._short.max_bytes or not self._short.suits(headers):
            return None
        return Exchange(self, begin, headers, self._short.timeouts, keep_alive=parser.should_keep_alive())

    def on_body(self, body: bytes) -> None:
        """A piece of its body."""
        if self._exchange is not None:
            self._exchange.add(body)
        else:
            super().on_body(body)

    def on_message_complete(self) -> None:
        """It is whole."""
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.run()
        else:
            super().on_message_complete()

    def forget(self, exchange: Exchange) -> bool:
        """Drops what may still come of a request.

        Args:
            exchange: The request.

        Returns:
            Whether it had come whole.
        """
        if self._exchange is not exchange:
            return True
        self._exchange = None
        return False

    def write_answer(self, exchange: Exchange, answer: Answer) -> None:
        """Writes an answer in one go.

        Args:
            exchange: What it answers.
            answer: The answer.
        """
        if self.transport.is_closing():
            return
        parts = [STATUS_LINE[answer.status]]
        for name, value in (*self.server_state.default_headers, *answer.headers):
            parts += (name, b": ", value, b"\r\n")
        parts.append(b"content-length: %d\r\n" % len(answer.body))
        if self._short.closing or not exchange.keep_alive:
            exchange.keep_alive = False
            parts.append(b"connection: close\r\n")
        parts += (b"\r\n", answer.body)
        self.transport.write(b"".join(parts))
        if not exchange.keep_alive:
            self.transport.close()
        self.on_response_complete()
