"""The process: start, signals, stop."""

from modelyard.serving.runtime._cli import main
from modelyard.serving.runtime._server import Server, run

__all__ = [
    "Server",
    "main",
    "run",
]
