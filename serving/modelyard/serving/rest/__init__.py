"""The REST transport."""

from modelyard.serving.rest._app import AsgiApp, RestApp
from modelyard.serving.rest._catalog import config_json, models_json
from modelyard.serving.rest._sagemaker import SageMakerApp
from modelyard.serving.rest._server import RestServer
from modelyard.serving.rest._types import Answer, HttpBegin, HttpRequest, RestOptions, error_answer

__all__ = [
    "Answer",
    "AsgiApp",
    "HttpBegin",
    "HttpRequest",
    "RestApp",
    "RestOptions",
    "RestServer",
    "SageMakerApp",
    "config_json",
    "error_answer",
    "models_json",
]
