"""What the status of a gRPC call says, whichever transport received it: pure functions."""

from __future__ import annotations

import math
from collections.abc import Iterable

from modelyard.errors import DeadlineExceededError, ModelyardError, UnavailableError
from modelyard.wire import decimal, error_from_grpc

_RETRY_AFTER = "retry-after"
_PUSHBACK = "grpc-retry-pushback-ms"


def error_of_status(
    code: str, details: str | None, trailers: Iterable[tuple[str, str | bytes]], url: str
) -> ModelyardError:
    """The error that a failed call stands for."""
    error = error_from_grpc(code, details or f"The server gave no reason, only the code {code}.")
    if isinstance(error, (UnavailableError, DeadlineExceededError)):
        error = type(error)(f"{url}: {error.message}")
    error.server_message = details or None
    error.retry_after_s = _retry_after(trailers)
    return error


def _retry_after(trailers: Iterable[tuple[str, str | bytes]]) -> float | None:
    for name, value in trailers:
        if name not in (_RETRY_AFTER, _PUSHBACK) or not isinstance(value, str):
            continue
        if (number := decimal(value)) is not None:
            return number / (1000 if name == _PUSHBACK else 1)
        if name == _PUSHBACK:
            # gRPC's proposal A6: a server that says this, or anything else than a number, wants no repetition.
            return math.inf
    return None
