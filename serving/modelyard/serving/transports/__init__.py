"""What carries requests and answers: the native core, or uvicorn and grpc.aio."""

from modelyard.serving.transports._listen import BACKLOG, listen

__all__ = [
    "BACKLOG",
    "listen",
]
