"""The servers of one client: which one gets the next call, and which ones are healthy."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Sequence
from typing import Generic, TypeVar

from modelyard.clients.transport._address import Address, resolve
from modelyard.clients.transport._options import BalanceOptions
from modelyard.errors import UnavailableError

_T = TypeVar("_T")


class Endpoint(Generic[_T]):
    """One address of a server."""

    __slots__ = ("address", "healthy", "in_flight", "probed", "transport")

    def __init__(self, address: Address, transport: _T) -> None:
        self.address = address
        self.transport = transport
        self.in_flight = 0
        self.healthy = True
        #: The same address for health checks, once there was one.
        self.probed: Endpoint[_T] | None = None


class Pool(Generic[_T]):
    """Endpoints, the least loaded healthy one first.

    Threads may share it. An endpoint that fails is passed over until a health
    check finds it well again; where none is healthy, all are tried.
    """

    def __init__(self, addresses: Sequence[Address], make: Callable[[Address], _T], options: BalanceOptions) -> None:
        self._names = tuple(addresses)
        self._make = make
        self._options = options
        self._lock = threading.Lock()
        self._refreshing = threading.Lock()
        self._turn = 0
        self._resolved_at: float | None = None
        self._retired: list[Endpoint[_T]] = []
        self._endpoints: tuple[Endpoint[_T], ...] = ()
        if not options.dns:
            self._endpoints = tuple(Endpoint(address, make(address)) for address in addresses)

    @property
    def endpoints(self) -> tuple[Endpoint[_T], ...]:
        """The endpoints that calls go to now."""
        return self._endpoints

    @property
    def watched(self) -> bool:
        """Whether there is something to choose from, so that health checks matter."""
        return self._options.dns or len(self._endpoints) > 1

    @property
    def all_transports(self) -> tuple[_T, ...]:
        """Every transport that has to be closed."""
        endpoints = (*self._endpoints, *self._retired)
        probed = (endpoint.probed for endpoint in endpoints if endpoint.probed is not None)
        return tuple(endpoint.transport for endpoint in (*endpoints, *probed))

    def acquire(self, tried: Collection[Endpoint[_T]] = ()) -> Endpoint[_T]:
        """Picks an endpoint for a call and counts the call."""
        if self._options.dns and self._resolved_at is None:
            self.refresh()
        with self._lock:
            if not self._endpoints:
                raise UnavailableError(f"{', '.join(item.url for item in self._names)}: no name could be resolved.")
            if len(self._endpoints) == 1:
                chosen = self._endpoints[0]
            else:
                rest = [endpoint for endpoint in self._endpoints if endpoint not in tried] or list(self._endpoints)
                choice = [endpoint for endpoint in rest if endpoint.healthy] or rest
                self._turn += 1
                least = min(endpoint.in_flight for endpoint in choice)
                choice = [endpoint for endpoint in choice if endpoint.in_flight == least]
                chosen = choice[self._turn % len(choice)]
            chosen.in_flight += 1
            return chosen

    def release(self, endpoint: Endpoint[_T]) -> None:
        """Counts a call as over."""
        with self._lock:
            endpoint.in_flight -= 1

    def probed(self, endpoint: Endpoint[_T]) -> Endpoint[_T]:
        """The same address with a connection of its own: calls that have all the others say nothing of the server."""
        if endpoint.probed is None:
            endpoint.probed = Endpoint(endpoint.address, self._make(endpoint.address))
        return endpoint.probed

    def fresh(self, tried: Collection[Endpoint[_T]]) -> bool:
        """Whether a healthy endpoint has not been tried."""
        return any(endpoint.healthy and endpoint not in tried for endpoint in self._endpoints)

    def refresh(self) -> None:
        """Looks the names up again, where their addresses are to be balanced and it is time.

        A name that cannot be resolved keeps the addresses that it had.
        """
        if not self._options.dns:
            return
        # A lock of its own: names may take seconds to resolve, in which calls go on to the addresses that are known.
        with self._refreshing:
            now = time.monotonic()
            if self._resolved_at is not None and now - self._resolved_at < self._options.dns_refresh_s:
                return
            known = {endpoint.address: endpoint for endpoint in self._endpoints}
            found: dict[Address, Endpoint[_T]] = {}
            failure: UnavailableError | None = None
            for name in self._names:
                try:
                    addresses = resolve(name)
                except UnavailableError as exc:
                    failure = exc
                    host = name.host.strip("[]")
                    found |= {key: value for key, value in known.items() if key.server_name == host}
                    continue
                for address in addresses:
                    found[address] = known.get(address) or Endpoint(address, self._make(address))
            if not found and failure is not None:
                raise failure
            with self._lock:
                # Calls may still be under way on the ones that are gone: closed with the client.
                self._retired += [endpoint for address, endpoint in known.items() if address not in found]
                self._endpoints = tuple(found.values())
                self._resolved_at = now
