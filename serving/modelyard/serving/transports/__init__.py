"""What carries requests and answers: the native core, or uvicorn and grpc.aio."""

from modelyard.serving.transports._listen import BACKLOG, listen
from modelyard.serving.transports._stop import warn_unanswered

__all__ = [
    "BACKLOG",
    "listen",
    "warn_unanswered",
]
