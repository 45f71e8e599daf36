"""Requests and answers of HTTP, with no server in them: what handlers need, and what transports need of handlers."""

from modelyard.serving.http._types import Answer, Application, Headers, HttpRequest

__all__ = ["Answer", "Application", "Headers", "HttpRequest"]
