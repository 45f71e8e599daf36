"""The REST transport."""

from modelyard.serving.rest._app import Answer, HttpRequest, RestApp, RestOptions
from modelyard.serving.rest._catalog import config_json, models_json
from modelyard.serving.rest._server import RestServer

__all__ = ["Answer", "HttpRequest", "RestApp", "RestOptions", "RestServer", "config_json", "models_json"]
