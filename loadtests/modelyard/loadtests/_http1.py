"""HTTP/1.1 over a pool of connections, as a load generator needs it: little work for each request."""

from __future__ import annotations

import asyncio
from collections import deque

from modelyard.loadtests._outcomes import HTTP_REFUSALS, Outcome
from modelyard.loadtests._sender import Cancel, Done, Endpoint
from modelyard.loadtests.traffic import Request

_MAX_HEAD = 1 << 16


class Http1Sender:
    """Sends each request on a connection that is free, or on a new one.

    Args:
        endpoint: Where the server is.
        max_connections: With all of them busy, requests wait here; that time
            counts, as the requests were due.
    """

    def __init__(self, endpoint: Endpoint, *, max_connections: int = 256) -> None:
        self._endpoint = endpoint
        self._max = max_connections
        self._idle: list[_Connection] = []
        self._all: set[_Connection] = set()
        self._opening = 0
        self._waiting: deque[_Job] = deque()
        self._tasks: set[asyncio.Task[None]] = set()

    def send(self, request: Request, done: Done) -> Cancel:
        """Sends a request: see :class:`Sender`."""
        job = _Job(self._bytes(request), done)
        while self._idle:
            connection = self._idle.pop()
            if connection.start(job):
                return job.cancel
        self._waiting.append(job)
        if len(self._all) + self._opening < self._max and self._opening < len(self._waiting):
            self._opening += 1
            task = asyncio.get_running_loop().create_task(self._open())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return job.cancel

    async def close(self) -> None:
        """Closes the connections."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for connection in list(self._all):
            connection.abort()

    def _bytes(self, request: Request) -> bytes:
        fields = "".join(f"{name}: {value}\r\n" for name, value in request.headers)
        line = f"{'GET' if request.body is None else 'POST'} {self._endpoint.prefix}{request.path} HTTP/1.1\r\n"
        head = f"{line}host: {self._endpoint.authority}\r\ncontent-length: {len(request.body or b'')}\r\n{fields}\r\n"
        return head.encode("latin-1") + (request.body or b"")

    async def _open(self) -> None:
        try:
            _, connection = await asyncio.get_running_loop().create_connection(
                lambda: _Connection(self), self._endpoint.host, self._endpoint.port, ssl=self._endpoint.tls
            )
        except OSError as exc:
            self._opening -= 1
            # Everybody who waits would find the same: they are told now, and the next request tries anew.
            if not self._all:
                while self._waiting:
                    self._waiting.popleft().finish(Outcome.UNREACHABLE, str(exc).encode())
            return
        self._opening -= 1
        self._all.add(connection)
        self.free(connection)

    def free(self, connection: _Connection) -> None:
        """Gives a connection its next request, or sets it aside.

        Args:
            connection: One with nothing to do.
        """
        while self._waiting:
            job = self._waiting.popleft()
            if not job.over:
                if connection.start(job):
                    return
                self._waiting.appendleft(job)
                return
        self._idle.append(connection)

    def lost(self, connection: _Connection) -> None:
        """Forgets a connection.

        Args:
            connection: One that is closed.
        """
        self._all.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)
        if self._waiting and not self._all and not self._opening:
            self._opening += 1
            task = asyncio.get_running_loop().create_task(self._open())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)


class _Job:
    """A request under way."""

    __slots__ = ("connection", "data", "done", "over")

    def __init__(self, data: bytes, done: Done) -> None:
        self.data = data
        self.done = done
        self.over = False
        self.connection: _Connection | None = None

    def finish(self, outcome: Outcome, body: bytes) -> None:
        if not self.over:
            self.over = True
            self.done(outcome, body)

    def cancel(self) -> None:
        """Gives it up; HTTP/1.1 can only close the connection."""
        if not self.over:
            self.over = True
            if self.connection is not None:
                self.connection.abort()


class _Connection(asyncio.Protocol):
    """One connection with at most one request on it."""

    def __init__(self, sender: Http1Sender) -> None:
        self._sender = sender
        self._transport: asyncio.Transport | None = None
        self._job: _Job | None = None
        self._buffer = bytearray()
        self._need = -1
        self._status = 0
        self._keep = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]

    def start(self, job: _Job) -> bool:
        """Sends a request; False where the connection is closing."""
        if self._transport is None or self._transport.is_closing():
            return False
        self._job = job
        job.connection = self
        self._transport.write(job.data)
        return True

    def abort(self) -> None:
        """Closes it at once."""
        if self._transport is not None:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if self._need == -1 and not self._head():
            return
        if self._need == -2:
            body = _chunks(self._buffer)
            if body is None:
                return
            self._buffer.clear()
        elif len(self._buffer) < self._need:
            return
        else:
            body = bytes(self._buffer[: self._need])
            del self._buffer[: self._need]
        job, self._job, self._need = self._job, None, -1
        if job is None:
            self.abort()
            return
        job.connection = None
        if self._keep:
            self._sender.free(self)
        else:
            self.abort()
        if self._status == 200:
            job.finish(Outcome.OK, body)
        else:
            outcome = Outcome.REFUSED if self._status in HTTP_REFUSALS else Outcome.FAILED
            job.finish(outcome, f"HTTP {self._status}: ".encode() + body[:300])

    def connection_lost(self, exc: Exception | None) -> None:
        self._sender.lost(self)
        if self._job is not None:
            self._job.finish(Outcome.UNREACHABLE, f"the connection broke: {exc or 'closed by the server'}".encode())

    def _head(self) -> bool:
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            if len(self._buffer) > _MAX_HEAD:
                self.abort()
            return False
        head = bytes(self._buffer[:end]).lower()
        del self._buffer[: end + 4]
        self._status = int(head[9:12]) if head[9:12].isdigit() else 0
        self._keep = b"\r\nconnection: close" not in head
        self._need = -2
        at = head.find(b"\r\ncontent-length:")
        if at >= 0:
            self._need = int(head[at + 17 :].split(b"\r\n", 1)[0])
        return True


def _chunks(buffer: bytearray) -> bytes | None:
    """The body of a chunked message; None where it is not complete."""
    parts: list[bytes] = []
    at = 0
    while True:
        end = buffer.find(b"\r\n", at)
        if end < 0:
            return None
        size = int(bytes(buffer[at:end]).split(b";")[0] or b"0", 16)
        at = end + 2
        if len(buffer) < at + size + 2:
            return None
        if not size:
            return b"".join(parts)
        parts.append(bytes(buffer[at : at + size]))
        at += size + 2
