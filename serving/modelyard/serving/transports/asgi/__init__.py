"""REST without the native core: uvicorn and httptools, with an application of HTTP behind them."""

from modelyard.serving.transports.asgi._server import UvicornServer

__all__ = [
    "UvicornServer",
]
