"""``modelyard predict``."""

from modelyard.clients.cli._cli import main

__all__ = [
    "main",
]
