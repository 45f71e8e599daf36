"""``modelyard loadtest``."""

from modelyard.loadtests.cli._cli import main

__all__ = [
    "main",
]
