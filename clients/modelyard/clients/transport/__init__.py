"""Servers, deadlines, retries and connections: what all transports share."""

from modelyard.clients.transport._address import Address, parse_addresses
from modelyard.clients.transport._engine import Effect, Engine, Race, Send
from modelyard.clients.transport._options import BalanceOptions, ClientOptions, RetryOptions, TlsOptions, check_seconds
from modelyard.clients.transport._pool import Endpoint, Pool

__all__ = [
    "Address",
    "BalanceOptions",
    "ClientOptions",
    "Effect",
    "Endpoint",
    "Engine",
    "Pool",
    "Race",
    "RetryOptions",
    "Send",
    "TlsOptions",
    "check_seconds",
    "parse_addresses",
]
