"""What clients may have a server hold: connections, header fields, time and bytes of requests."""

from __future__ import annotations

import argparse
from dataclasses import dataclass

from modelyard.errors import ConfigurationError
from modelyard.serving.config._flag_table import FLAGS

#: What hyper's buffer for a head has at least.
_MIN_HEADER_BYTES = 8192
INT32_MAX = (1 << 31) - 1
#: 0, for no limit, as a number that timers can hold.
_FOREVER_S = 1e9
#: The flags of these limits, and the transports that have them.
_TRANSPORTS = {
    "max_connections": ("native", "python"),
    "max_concurrent_streams": ("native", "python"),
    "max_header_bytes": ("native", "python"),
    "header_timeout_seconds": ("native", "python"),
    "body_timeout_seconds": ("native",),
    "idle_timeout_seconds": ("native", "python"),
    "max_inflight_bytes": ("native",),
}


@dataclass(frozen=True, kw_only=True)
class TransportLimits:
    """Limits of each process.

    Attributes:
        max_connections: Connections that are open; 0 for any number.
        max_streams: Calls of one HTTP/2 connection at the same time.
        max_header_bytes: Bytes of a request's line and header fields.
        header_timeout_s: Seconds that header fields may take to come, once they have begun.
        body_timeout_s: Seconds that a body may take to come, beyond what its size is worth.
        idle_timeout_s: Seconds that a connection may be without a request.
        max_inflight_bytes: Bytes of requests that are read or answered; 0 for any number.
    """

    max_connections: int = 10_000
    max_streams: int = 1024
    max_header_bytes: int = 32 << 10
    header_timeout_s: float = 20.0
    body_timeout_s: float = 20.0
    idle_timeout_s: float = 75.0
    max_inflight_bytes: int = 1 << 30

    def largest(self, size: int) -> int:
        """The size of a request that can ever be let in.

        Args:
            size: Bytes that another limit allows.
        """
        return min(size, self.max_inflight_bytes or size)

    def channel_arguments(self) -> tuple[tuple[str, int], ...]:
        """Those that gRPC's own server has, as its channel arguments."""
        return (
            ("grpc.max_concurrent_streams", self.max_streams),
            ("grpc.max_metadata_size", self.max_header_bytes),
            ("grpc.max_connection_idle_ms", min(round(self.idle_timeout_s * 1000), INT32_MAX)),
        )


def transport_limits(args: argparse.Namespace, transport: str) -> TransportLimits:
    """The limits that flags set.

    Args:
        args: The flags.
        transport: What serves.

    Raises:
        ConfigurationError: A flag is set that the transport does not have, or to a value that makes no sense.
    """
    defaults = {flag.name: flag.default for flag in FLAGS}
    for name, transports in _TRANSPORTS.items():
        value = getattr(args, name)
        if value < 0:
            raise ConfigurationError(f"--{name}={value}; expected 0 or more.")
        if value != defaults[name] and transport not in transports:
            raise ConfigurationError(
                f"--{name}={value} is no limit of --transport={transport}; {' and '.join(transports)} have it."
            )
    if args.max_header_bytes < _MIN_HEADER_BYTES:
        raise ConfigurationError(f"--max_header_bytes={args.max_header_bytes}; expected {_MIN_HEADER_BYTES} or more.")
    return TransportLimits(
        max_connections=args.max_connections,
        max_streams=min(args.max_concurrent_streams or INT32_MAX, INT32_MAX),
        max_header_bytes=args.max_header_bytes,
        header_timeout_s=args.header_timeout_seconds or _FOREVER_S,
        body_timeout_s=args.body_timeout_seconds or _FOREVER_S,
        idle_timeout_s=args.idle_timeout_seconds or _FOREVER_S,
        max_inflight_bytes=args.max_inflight_bytes,
    )
