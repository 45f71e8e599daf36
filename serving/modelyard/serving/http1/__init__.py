"""HTTP/1.1 for the REST API: a server on asyncio, with what it needs of an application."""

from modelyard.serving.http import Answer, Headers, HttpRequest
from modelyard.serving.http1._server import Http1Server
from modelyard.serving.http1._types import Application, Begin, Head, Respond

__all__ = ["Answer", "Application", "Begin", "Head", "Headers", "Http1Server", "HttpRequest", "Respond"]
