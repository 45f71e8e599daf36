"""uvicorn's protocol, with limits on heads, and without upgrades to other protocols."""

from __future__ import annotations

import asyncio
import re

from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from modelyard.serving.config import TransportLimits
from modelyard.serving.metrics import Metrics
from modelyard.serving.transports.asgi._adapter import CERTIFICATE

_BODY = (b"content-length", b"transfer-encoding")
_END = b"\r\n\r\n"
#: A field that does not go on in the next line.
_UPGRADE = re.compile(rb"\r\n(?i:upgrade):[^\r\n]*(?=\r\n[^ \t])")


class BoundedProtocol(HttpToolsProtocol):
    """HTTP/1.1 by httptools, which takes a head however long it is, and waits for its end for ever.

    It also takes what follows a head that offers another protocol for that protocol's: Java's client offers HTTP/2 with
    its first request, whatever body that has. So offers are left out here.
    """

    limits: TransportLimits
    metrics: Metrics | None
    _in_head = True
    #: Since a head began, or a body went on: chunks have a head each, and fields may follow them.
    _head_bytes = 0
    _timer: asyncio.TimerHandle | None = None
    _certificate: bytes | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(transport)
        session = transport.get_extra_info("ssl_object")
        self._certificate = None if session is None else session.getpeercert(binary_form=True)
        # Clients open connections before they have a request; after the first one uvicorn watches.
        self._timer = self.loop.call_later(self.limits.idle_timeout_s, transport.close)

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._in_head and not self._head_bytes:
            data = _without_offer(data)
            self._end_timer()
            self._timer = self.loop.call_later(self.limits.header_timeout_s, self.transport.close)
        self._head_bytes += len(data)
        super().data_received(data)
        limit = self.limits.max_header_bytes
        if self._head_bytes > limit and not self.transport.is_closing():
            self.send_400_response(f"The request's line and header fields take more than {limit} bytes.")

    def on_header(self, name: bytes, value: bytes) -> None:
        """A field of the head; those behind a body's chunks are nobody's credentials (RFC 9110, section 6.5.1)."""
        if self._in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._in_head, self._head_bytes = False, 0
        self._end_timer()
        if self.parser.should_upgrade() and any(name in _BODY for name, _ in self.headers):
            # An offer that came in several reads: an error is better than a wrong answer.
            raise ValueError("an offer of another protocol, with a body")
        if sum(name == b"host" for name, _ in self.headers) > 1:
            raise ValueError("several Host fields")
        if len(self.url) + sum(len(name) + len(value) for name, value in self.headers) > self.limits.max_header_bytes:
            raise ValueError("header fields that came at once, and are too many")
        self.scope[CERTIFICATE] = self._certificate  # type: ignore[literal-required]  # a key of ours
        limit = self.limit_concurrency
        if limit is not None and max(len(self.connections), len(self.tasks)) >= limit and self.metrics is not None:
            # What uvicorn answers now, by itself.
            self.metrics.refuse("connections")
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._head_bytes = 0
        if self.cycle.response_complete:
            return
        # Who waits for a body wants all of it: to be woken for each packet would cost more than the packet.
        self.cycle.body += body
        if len(self.cycle.body) > HIGH_WATER_LIMIT:
            super().on_body(b"")

    def on_message_complete(self) -> None:
        """The body is: what follows is another head."""
        self._in_head, self._head_bytes = True, 0
        super().on_message_complete()

    def _end_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def bounded(limits: TransportLimits, metrics: Metrics | None) -> type[BoundedProtocol]:
    return type("BoundedProtocol", (BoundedProtocol,), {"limits": limits, "metrics": metrics})


def _without_offer(data: bytes) -> bytes:
    end = data.find(_END) + len(_END)
    return data if end < len(_END) else _UPGRADE.sub(b"", data[:end]) + data[end:]
