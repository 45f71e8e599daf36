"""The REST transport."""

from modelyard.serving.rest._app import Answer, AsgiApp, HttpRequest, RestApp, RestOptions
from modelyard.serving.rest._catalog import config_json, models_json
from modelyard.serving.rest._sagemaker import SageMakerApp
from modelyard.serving.rest._server import RestServer

__all__ = [
    "Answer",
    "AsgiApp",
    "HttpRequest",
    "RestApp",
    "RestOptions",
    "RestServer",
    "SageMakerApp",
    "config_json",
    "models_json",
]
