"""The REST API, with no server in it."""

from modelyard.serving.rest._app import RestApp
from modelyard.serving.rest._catalog import config_json, models_json
from modelyard.serving.rest._sagemaker import SageMakerApp
from modelyard.serving.rest._types import RestOptions, error_answer

__all__ = ["RestApp", "RestOptions", "SageMakerApp", "config_json", "error_answer", "models_json"]
