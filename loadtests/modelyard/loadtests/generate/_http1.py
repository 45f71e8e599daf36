"""HTTP/1.1 over a pool of connections, as a load generator needs it: little work for each request."""

from __future__ import annotations

import asyncio
from collections import deque

from modelyard.clients.http import Bytes, Http1Reader, Reply
from modelyard.errors import ProtocolError
from modelyard.loadtests.generate._outcomes import HTTP_REFUSALS, Outcome
from modelyard.loadtests.generate._sender import Cancel, Done, Endpoint
from modelyard.loadtests.traffic import Request


class Http1Sender:
    """Sends each request on a connection that is free, or on a new one."""

    def __init__(self, endpoint: Endpoint, *, max_connections: int = 256) -> None:
        self._endpoint = endpoint
        self.url = f"http{'s' if endpoint.tls else ''}://{endpoint.authority}"
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
            self._connect()
        return job.cancel

    def _connect(self) -> None:
        self._opening += 1
        task = asyncio.get_running_loop().create_task(self._open())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for connection in list(self._all):
            connection.abort()

    def _bytes(self, request: Request) -> bytes:
        fields = "".join(f"{name}: {value}\r\n" for name, value in (*request.headers, *self._endpoint.headers))
        line = f"{'GET' if request.body is None else 'POST'} {self._endpoint.prefix}{request.path} HTTP/1.1\r\n"
        head = f"{line}host: {self._endpoint.authority}\r\ncontent-length: {len(request.body or b'')}\r\n{fields}\r\n"
        return head.encode("latin-1") + (request.body or b"")

    async def _open(self) -> None:
        try:
            _, connection = await asyncio.get_running_loop().create_connection(
                lambda: _Connection(self), self._endpoint.host, self._endpoint.port, ssl=self._endpoint.tls
            )
        except OSError as exc:
            # All waiting requests would fail in the same way: they fail now, and the next request tries anew.
            if not self._all:
                while self._waiting:
                    self._waiting.popleft().finish(Outcome.UNREACHABLE, str(exc).encode())
            return
        finally:
            self._opening -= 1
        self._all.add(connection)
        self.free(connection)

    def free(self, connection: _Connection) -> None:
        """Send the next waiting request on an idle connection."""
        while self._waiting:
            job = self._waiting.popleft()
            if not job.over:
                if connection.start(job):
                    return
                self._waiting.appendleft(job)
                return
        self._idle.append(connection)

    def lost(self, connection: _Connection) -> None:
        self._all.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)
        if self._waiting and not self._all and not self._opening:
            self._connect()


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
        """Cancel the request; HTTP/1.1 can only close the connection."""
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
        self._reader = Http1Reader()
        self._answer: Bytes[Reply] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]

    def start(self, job: _Job) -> bool:
        """Sends a request; False where the connection is closing."""
        if self._transport is None or self._transport.is_closing():
            return False
        self._job = job
        job.connection = self
        self._answer = self._reader.answer(self._sender.url, None)
        next(self._answer)
        self._transport.write(job.data)
        return True

    def abort(self) -> None:
        """Closes it at once."""
        if self._transport is not None:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        job = self._job
        if job is None or self._answer is None:
            # Data without a request.
            self.abort()
            return
        try:
            self._answer.send(data)
        except StopIteration as stop:
            self._job = job.connection = None
            reply: Reply = stop.value
            if reply.reusable and self._reader.empty:
                self._sender.free(self)
            else:
                self.abort()
            _finish(job, reply)
        except ProtocolError as exc:
            self._job = job.connection = None
            self.abort()
            job.finish(Outcome.FAILED, exc.message.encode())

    def connection_lost(self, exc: Exception | None) -> None:
        self._sender.lost(self)
        job, self._job = self._job, None
        if job is None or self._answer is None:
            return
        try:
            # The end of the connection is the end of some answers.
            self._answer.send(b"")
        except StopIteration as stop:
            _finish(job, stop.value)
        except (EOFError, ProtocolError):
            job.finish(Outcome.UNREACHABLE, f"the connection broke: {exc or 'closed by the server'}".encode())


def _finish(job: _Job, reply: Reply) -> None:
    if reply.status == 200:
        job.finish(Outcome.OK, reply.data)
    else:
        outcome = Outcome.REFUSED if reply.status in HTTP_REFUSALS else Outcome.FAILED
        job.finish(outcome, f"HTTP {reply.status}: ".encode() + reply.data[:300])
