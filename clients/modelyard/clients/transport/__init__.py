"""Servers, deadlines, retries and connections: what all transports share."""

from modelyard.clients.transport._address import Address, parse_addresses
from modelyard.clients.transport._engine import Engine, Race, Send, Steps
from modelyard.clients.transport._options import BalanceOptions, ClientOptions, RetryOptions, TlsOptions, check_seconds
from modelyard.clients.transport._pool import Pool

__all__ = [
    "Address",
    "BalanceOptions",
    "ClientOptions",
    "Engine",
    "Pool",
    "Race",
    "RetryOptions",
    "Send",
    "Steps",
    "TlsOptions",
    "check_seconds",
    "parse_addresses",
]
