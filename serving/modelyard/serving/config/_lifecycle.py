"""How a server begins, ends, and lives with models that do not behave."""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass

from modelyard.errors import ConfigurationError


@dataclass(frozen=True, kw_only=True)
class LifecycleOptions:
    """How a server begins, ends, and lives with models that do not behave.

    Attributes:
        drain_s: Seconds that running requests get when the server stops.
        shutdown_delay_s: Seconds that a server that is to stop goes on answering, while it says that it is not ready.
        max_batch_s: A version whose batch is computed for more seconds gets no requests until it ends; 0 for any.
        probe_loads: Versions are loaded in a process of their own first.
        probe_memory_bytes: Memory that this process may take; 0 for what is free.
        probe_timeout_s: Seconds that it may take.
    """

    drain_s: float = 10.0
    shutdown_delay_s: float = 0.0
    max_batch_s: float = 300.0
    probe_loads: bool = False
    probe_memory_bytes: int = 0
    probe_timeout_s: float = 300.0


def lifecycle_options(args: argparse.Namespace) -> LifecycleOptions:
    """What the flags say.

    Args:
        args: The flags.

    Raises:
        ConfigurationError: A time is negative, a probe may take none, or this system cannot limit its memory.
    """
    for name in ("drain_seconds", "shutdown_delay_seconds", "max_batch_seconds", "probe_timeout_seconds"):
        if getattr(args, name) < 0:
            raise ConfigurationError(f"--{name}={getattr(args, name):g}; expected 0 or more.")
    if args.probe_memory_mb and sys.platform != "linux":
        raise ConfigurationError(f"--probe_memory_mb={args.probe_memory_mb} is for Linux only; leave it out here.")
    if args.probe_loads and not args.probe_timeout_seconds:
        raise ConfigurationError("--probe_timeout_seconds=0 would refuse every version; expected more than 0.")
    return LifecycleOptions(
        drain_s=args.drain_seconds,
        shutdown_delay_s=args.shutdown_delay_seconds,
        max_batch_s=args.max_batch_seconds,
        probe_loads=args.probe_loads,
        probe_memory_bytes=args.probe_memory_mb << 20,
        probe_timeout_s=args.probe_timeout_seconds,
    )
