"""Requests and answers of HTTP, with no server in them: what handlers need, and what transports need of handlers."""

from modelyard.serving.transports.http._types import Answer, Application, HttpLimits, HttpRequest, answer_of

__all__ = [
    "Answer",
    "Application",
    "HttpLimits",
    "HttpRequest",
    "answer_of",
]
