"""uvicorn's protocol, with limits on what stands before a body."""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

#: What stands before a body may have so many bytes.
MAX_HEAD_BYTES = 32 << 10
#: And it must be whole after so long.
HEAD_S = 20.0


class BoundedProtocol(HttpToolsProtocol):
    """HTTP/1.1 by httptools, which takes a head however long it is, and waits for its end for ever."""

    _in_head = True
    _head_bytes = 0
    _head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        """Takes the transport."""
        super().connection_made(transport)
        self._head_timer = self.loop.call_later(HEAD_S, transport.close)

    def connection_lost(self, exc: Exception | None) -> None:
        """Ends what waits."""
        self._end_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Takes what the client sends."""
        if self._in_head:
            self._head_bytes += len(data)
            if self._head_timer is None:
                self._head_timer = self.loop.call_later(HEAD_S, self.transport.close)
        super().data_received(data)
        if self._in_head and self._head_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
            self.send_400_response(f"The request's line and header fields take more than {MAX_HEAD_BYTES} bytes.")

    def on_headers_complete(self) -> None:
        """The head is whole."""
        self._in_head = False
        self._end_timer()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """The body is: what follows is another head."""
        self._in_head, self._head_bytes = True, 0
        super().on_message_complete()

    def _end_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
