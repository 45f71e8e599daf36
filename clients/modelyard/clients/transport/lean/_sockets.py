"""Pooled blocking connections, under both of this package's own transports."""

from __future__ import annotations

import collections
import contextlib
import errno
import os
import re
import select
import socket
import ssl
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from modelyard.clients.transport import Address, ClientOptions
from modelyard.clients.transport.lean._tls import ssl_context
from modelyard.errors import DeadlineExceededError, ModelyardError, UnavailableError

_PROBES = 3
_PROBE_S = 5


class Connection(ABC):
    """What a pool holds; ``reusable`` says after a call whether another one may follow."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self.reusable = True

    @abstractmethod
    def usable(self) -> bool:
        """Whether it can still carry a call."""

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.close()


_C = TypeVar("_C", bound=Connection)
_T = TypeVar("_T")


class SocketPool(Generic[_C]):
    """Connections to one address; a call has one for itself."""

    def __init__(
        self,
        address: Address,
        options: ClientOptions,
        make: Callable[[socket.socket], _C],
        alpn: tuple[str, ...] = (),
    ) -> None:
        self._make = make
        self._address = address
        self._options = options
        # Reading the system's roots takes longer than everything else here: only where they are needed.
        self._tls = ssl_context(options.tls) if address.secure else None
        if self._tls is not None and alpn:
            self._tls.set_alpn_protocols(list(alpn))
        self._idle: collections.deque[tuple[_C, float]] = collections.deque()
        self._slots = threading.BoundedSemaphore(options.max_connections)
        self._process = os.getpid()
        self._closed = False

    def close(self) -> None:
        """Closes the connections that no call uses; the others close after their calls."""
        self._closed = True
        while self._idle:
            self._idle.popleft()[0].close()

    @contextlib.contextmanager
    def slot(self, url: str, timeout_s: float) -> Iterator[None]:
        """Waits for a connection to be free, and names the errors of sockets."""
        if self._process != os.getpid():
            self._leave_parent()
        slots = self._slots
        try:
            if not slots.acquire(timeout=timeout_s):
                raise TimeoutError("all connections are in use")
            try:
                yield
            finally:
                slots.release()
        except (OSError, EOFError) as exc:
            raise failed(exc, url) from exc

    def exchange(self, call: Callable[[_C], _T], deadline: float, *, fresh: bool) -> _T:
        """Performs a call on a connection that is open already, or on a new one."""
        connection = None if fresh else self._take()
        if connection is None:
            connection = self._make(self._open(deadline))
        try:
            result = call(connection)
        except BaseException:
            connection.close()
            raise
        # A new one beside another that no call has would stay: each such call would leave one more.
        if connection.reusable and not self._closed and not (fresh and self._idle):
            self._idle.append((connection, time.monotonic()))
        else:
            connection.close()
        return result

    def _leave_parent(self) -> None:
        """After a fork, lets go of what the parent's calls use."""
        # Parent and child would write into each other's connections. The parent's stay open.
        while self._idle:
            self._idle.popleft()[0].close()
        # Its calls give their slots back in the parent alone.
        self._slots = threading.BoundedSemaphore(self._options.max_connections)
        self._process = os.getpid()

    def _take(self) -> _C | None:
        """A connection that is open already, if there is one."""
        now = time.monotonic()
        keep_s = self._options.keepalive_s
        with contextlib.suppress(IndexError):
            while keep_s is not None and now - self._idle[0][1] >= keep_s:
                self._idle.popleft()[0].close()
        while True:
            try:
                # The one used last is the one least likely to have been closed.
                connection, _ = self._idle.pop()
            except IndexError:
                return None
            if connection.usable():
                return connection
            connection.close()

    def _open(self, deadline: float) -> socket.socket:
        address, options = self._address, self._options
        raw = _connected(address, deadline)
        try:
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            keep_alive(raw, options.keepalive_s)
            if self._tls is None:
                return raw
            name = options.tls.server_name or address.server_name or address.host.strip("[]")
            raw.settimeout(max(deadline - time.monotonic(), 0.001))
            return self._tls.wrap_socket(raw, server_hostname=name)
        except BaseException:
            raw.close()
            raise


def _connected(address: Address, deadline: float) -> socket.socket:
    """Tries the addresses of a name in turn; each may take its share of the time that is left."""
    found = collections.deque(socket.getaddrinfo(address.host.strip("[]"), address.port, type=socket.SOCK_STREAM))
    while True:
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("no time is left to connect")
        family, kind, protocol, _, where = found.popleft()
        try:
            raw = socket.socket(family, kind, protocol)
            try:
                raw.settimeout(left / (len(found) + 1))
                raw.connect(where)
                return raw
            except BaseException:
                raw.close()
                raise
        except OSError:
            if not found:
                raise


#: A server's words about the client's certificate, in OpenSSL's names.
_REFUSED = re.compile("ALERT_(CERTIFICATE_|BAD_CERTIFICATE|UNKNOWN_CA|UNSUPPORTED_CERTIFICATE)")


def failed(exc: OSError | EOFError, url: str) -> ModelyardError:
    """The error that a failure of a socket stands for."""
    # The system's own time-out says that the address does not answer; those of deadlines have no number.
    if isinstance(exc, TimeoutError) and exc.errno != errno.ETIMEDOUT:
        reason = f" ({exc})" if str(exc) else ""
        return DeadlineExceededError(f"{url}: no complete answer in time{reason}.")
    reason = str(exc).rstrip(".") or type(exc).__name__
    return UnavailableError(f"{url} cannot be reached: {reason}. {_remedy(exc)}")


def _remedy(exc: OSError | EOFError) -> str:
    if isinstance(exc, ssl.SSLCertVerificationError):
        return "TlsOptions(ca=...) names the authority to trust, server_name=... the name in the certificate."
    if isinstance(exc, ssl.SSLError) and _REFUSED.search(exc.reason or ""):
        return (
            "The server wants a client's certificate that it trusts: TlsOptions(certificate=..., key=...) names the "
            "chain, the client's own first, and its key."
        )
    if isinstance(exc, ssl.SSLError):
        return "Does this port speak TLS? Where it does not, the URL begins with grpc:// or http://."
    return "Is the server running?"


def readable(sock: socket.socket) -> bool:
    """Whether something has come, the end included."""
    if isinstance(sock, ssl.SSLSocket) and sock.pending():
        return True
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return bool(poll.poll(0))


def arm(sock: socket.socket, deadline: float) -> None:
    """Lets the next operation take until a deadline."""
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError("the deadline has passed")
    sock.settimeout(left)


def keep_alive(raw: socket.socket, after_s: float | None) -> None:
    """Lets the system find out, while a call waits, that the other machine is gone."""
    if after_s is None or not hasattr(socket, "TCP_KEEPIDLE"):
        return
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        (socket.TCP_KEEPIDLE, max(1, round(after_s))),
        (socket.TCP_KEEPINTVL, _PROBE_S),
        (socket.TCP_KEEPCNT, _PROBES),
    ):
        raw.setsockopt(socket.IPPROTO_TCP, option, value)
