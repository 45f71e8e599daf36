"""Pooled connections of an event loop, under both of this package's own transports."""

from __future__ import annotations

import asyncio
import collections
import math
import ssl
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Generic, TypeVar, cast

from modelyard.clients.transport import Address, ClientOptions
from modelyard.clients.transport.lean import keep_alive, ssl_context


class Channel(asyncio.Protocol, ABC):
    """One connection."""

    def __init__(self, keepalive_s: float | None) -> None:
        self.keepalive_s = keepalive_s
        self.loop = asyncio.get_running_loop()
        self.transport: asyncio.Transport | None = None
        self.lost = False
        self.alpn: str | None = None
        self.used_at = time.monotonic()
        self._gone: asyncio.Future[None] = self.loop.create_future()
        #: Calls under way, and when each has to be over on the monotonic clock.
        self._deadlines: dict[asyncio.Future[Any], float] = {}
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_at = math.inf

    @property
    @abstractmethod
    def takes_calls(self) -> bool:
        """Whether another call may begin here."""

    @property
    @abstractmethod
    def idle(self) -> bool:
        """Whether no call is under way."""

    @abstractmethod
    def lose(self, exc: Exception) -> None:
        """Ends the calls that are under way."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Notes the connection."""
        self.transport = cast(asyncio.Transport, transport)
        keep_alive(transport.get_extra_info("socket"), self.keepalive_s)
        tls: ssl.SSLObject | None = transport.get_extra_info("ssl_object")
        self.alpn = None if tls is None else tls.selected_alpn_protocol()

    def connection_lost(self, exc: Exception | None) -> None:
        """Notes its end."""
        self.lost = True
        if self._alarm is not None:
            self._alarm.cancel()
        self.lose(exc or EOFError("the server closed the connection without a complete answer"))
        if not self._gone.done():
            self._gone.set_result(None)

    def fail(self, exc: Exception) -> None:
        self.lost = True
        self.lose(exc)
        if self.transport is not None:
            self.transport.abort()

    async def close(self) -> None:
        self.lost = True
        if self.transport is not None:
            # What is still to be sent would keep an unused connection open.
            self.transport.abort()
            await self._gone

    def _begin(self, deadline: float) -> asyncio.Future[Any]:
        """What a call waits for; it fails with TimeoutError where the call is not over in time."""
        waiter = self.loop.create_future()
        self._deadlines[waiter] = deadline
        # A timer for each call would be a tenth of its cost. Calls are over long before their deadlines as a rule,
        # so there is one, for the earliest; when it rings it is set for the earliest of the calls there are then.
        if deadline < self._alarm_at:
            self._set_alarm(deadline)
        return waiter

    def _end(self, waiter: asyncio.Future[Any]) -> None:
        """A call is over."""
        del self._deadlines[waiter]

    def _set_alarm(self, at: float) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm_at = at
        self._alarm = self.loop.call_later(max(0.0, at - time.monotonic()), self._ring)

    def _ring(self) -> None:
        self._alarm, self._alarm_at = None, math.inf
        now = time.monotonic()
        for waiter, deadline in self._deadlines.items():
            if deadline <= now and not waiter.done():
                waiter.set_exception(TimeoutError())
        left = [deadline for deadline in self._deadlines.values() if deadline > now]
        if left:
            self._set_alarm(min(left))


_C = TypeVar("_C", bound=Channel)


class AsyncPool(Generic[_C]):
    """Connections to one address, as many as its calls need."""

    def __init__(
        self,
        address: Address,
        options: ClientOptions,
        make: Callable[[], _C],
        *,
        alpn: tuple[str, ...] = (),
        shared: bool = False,
    ) -> None:
        self._address = address
        self._options = options
        self._make = make
        self._tls = ssl_context(options.tls) if address.secure else None
        if self._tls is not None and alpn:
            self._tls.set_alpn_protocols(list(alpn))
        self._channels: list[_C] = []
        #: Those that no call has, where a call has one for itself.
        self._idle: list[_C] = []
        self._connecting = 0
        self._closed = False
        self._one_at_a_time = asyncio.Lock() if shared else None
        self._queue: collections.deque[asyncio.Future[None]] = collections.deque()

    def _free(self) -> _C | None:
        """A channel that is open and takes a call now, if there is one."""
        if self._one_at_a_time is None:
            # The one used last is the one least likely to have been closed.
            while self._idle:
                if self._usable(channel := self._idle.pop()):
                    return channel
            return None
        # The one opened last is as good as any; the ones before it get old and are closed.
        for channel in reversed(self._channels):
            if self._usable(channel):
                return channel
        return None

    async def take(self, *, fresh: bool, deadline: float) -> _C:
        """A channel that takes a call; begin it before anything else is awaited."""
        channel = None if fresh else self._free()
        if channel is None:
            async with asyncio.timeout(deadline - time.monotonic()):
                channel = await self._open(fresh=fresh)
        return channel

    def give(self, channel: _C) -> None:
        """Says that a call is over."""
        channel.used_at = time.monotonic()
        if self._one_at_a_time is None and channel.takes_calls:
            self._idle.append(channel)
        if self._queue:
            self._wake()

    async def close(self) -> None:
        self._closed = True
        channels, self._channels, self._idle = self._channels, [], []
        while self._queue:
            self._wake()
        for channel in channels:
            await channel.close()

    def _usable(self, channel: _C) -> bool:
        """Whether a channel takes a call; one that has been silent for too long is closed."""
        if not channel.takes_calls:
            return False
        keep_s = self._options.keepalive_s
        if keep_s is None or not channel.idle or time.monotonic() - channel.used_at < keep_s:
            return True
        self._drop(channel)
        return False

    def _drop(self, channel: _C) -> None:
        channel.lost = True
        if channel.transport is not None:
            # Closed gently it would keep what a silent server does not read.
            channel.transport.abort()

    async def _open(self, *, fresh: bool) -> _C:
        if self._one_at_a_time is None or fresh:
            return await self._opened(fresh=fresh)
        async with self._one_at_a_time:
            # Somebody else may have opened one in the meantime.
            return self._free() or await self._opened(fresh=False)

    async def _opened(self, *, fresh: bool) -> _C:
        while True:
            self._check_open()
            # In the place of one that no call has: else each such call would leave one more.
            if fresh and (old := next((item for item in self._channels if item.idle), None)) is not None:
                self._drop(old)
            for item in self._channels:
                # The server takes no more calls here, but keeps the connection: it would count for ever.
                if item.idle and not item.takes_calls:
                    self._drop(item)
            self._channels = [item for item in self._channels if not item.lost]
            if len(self._channels) + self._connecting < self._options.max_connections:
                self._connecting += 1
                try:
                    channel = await self._connect()
                except BaseException:
                    self._wake()
                    raise
                finally:
                    self._connecting -= 1
                self._channels.append(channel)
                return channel
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._queue.append(turn)
            try:
                await turn
            except asyncio.CancelledError:
                self._wake()
                raise
            if not fresh and (free := self._free()) is not None:
                return free

    def _check_open(self) -> None:
        if self._closed:
            raise EOFError("the client was closed")

    def _wake(self) -> None:
        while self._queue:
            turn = self._queue.popleft()
            if not turn.done():
                turn.set_result(None)
                return

    async def _connect(self) -> _C:
        address, options = self._address, self._options
        name = options.tls.server_name or address.server_name or address.host.strip("[]")
        _, channel = await asyncio.get_running_loop().create_connection(
            self._make,
            address.host.strip("[]"),
            address.port,
            ssl=self._tls,
            server_hostname=None if self._tls is None else name,
        )
        if self._closed:
            await channel.close()
        self._check_open()
        return channel
