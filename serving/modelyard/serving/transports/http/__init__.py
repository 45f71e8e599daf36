"""Requests and answers of HTTP, with no server in them: what handlers need, and what transports need of handlers."""

from modelyard.serving.transports.http._types import Answer, Application, HttpRequest

__all__ = [
    "Answer",
    "Application",
    "HttpRequest",
]
