"""What the server says of itself: logs, and how they look."""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass
from typing import Literal

from modelyard.errors import ConfigurationError

Form = Literal["text", "json"]


@dataclass(frozen=True, kw_only=True)
class TelemetryOptions:
    """What is logged.

    Attributes:
        access_share: Share of requests in the access log, from 0 to 1.
        access_form: How its lines look.
        slow_s: Requests that take at least so many seconds are logged; 0 for none.
        log_level: Least severity in the server's log.
        log_form: How its lines look.
    """

    access_share: float = 0.0
    access_form: Form = "text"
    slow_s: float = 0.0
    log_level: str = "info"
    log_form: Form = "text"


def telemetry_options(args: argparse.Namespace) -> TelemetryOptions:
    """The options that flags say.

    Args:
        args: The flags.

    Raises:
        ConfigurationError: A value makes no sense.
    """
    if args.slow_request_ms < 0:
        raise ConfigurationError(f"--slow_request_ms={args.slow_request_ms:g}; expected milliseconds, or 0 for none.")
    return TelemetryOptions(
        access_share=_share(args.access_log),
        access_form=args.access_log_format,
        slow_s=args.slow_request_ms / 1e3,
        log_level=args.log_level,
        log_form=args.log_format,
    )


def _share(text: str) -> float:
    kind, colon, number = text.partition(":")
    if text in ("off", "all"):
        return float(text == "all")
    try:
        share = float(number) if kind == "sampled" and colon else math.nan
    except ValueError:
        share = math.nan
    if not 0 < share <= 1:
        raise ConfigurationError(
            f"--access_log={text}; expected off, all, or sampled:SHARE with a share above 0 and up to 1, such as "
            "sampled:0.01."
        )
    return share
