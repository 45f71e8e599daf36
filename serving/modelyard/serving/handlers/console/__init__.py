"""Pages for people: models, their versions and signatures, live numbers, and a form to try each signature."""

from modelyard.serving.handlers.console._app import Check, ConsoleApp
from modelyard.serving.handlers.console._models import Traffic

__all__ = [
    "Check",
    "ConsoleApp",
    "Traffic",
]
