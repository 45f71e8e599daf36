"""The REST transport."""

from modelyard.serving.rest._app import RestApp, RestOptions
from modelyard.serving.rest._server import RestServer

__all__ = ["RestApp", "RestOptions", "RestServer"]
