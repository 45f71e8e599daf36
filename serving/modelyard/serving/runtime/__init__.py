"""The process: start, signals, stop."""

from modelyard.serving.runtime._cli import main
from modelyard.serving.runtime._process import run
from modelyard.serving.runtime._server import Server

__all__ = [
    "Server",
    "main",
    "run",
]
