"""What can become of a request."""

from __future__ import annotations

import enum


class Outcome(enum.IntEnum):
    """What became of a request; everything but ``OK`` is a failure.

    ``REFUSED`` is a server that rejects for lack of capacity (RESOURCE_EXHAUSTED or HTTP 429,
    UNAVAILABLE or 503): under overload that is what it should say, and a run
    may allow it. ``UNREACHABLE`` is a connection that failed or broke.
    """

    OK = 0
    WRONG = 1
    REFUSED = 2
    FAILED = 3
    TIMEOUT = 4
    UNREACHABLE = 5


#: gRPC's RESOURCE_EXHAUSTED and UNAVAILABLE.
GRPC_REFUSALS = (8, 14)
HTTP_REFUSALS = (429, 503)
