"""The REST API, with no server in it."""

from modelyard.serving.handlers.rest._app import RestApp
from modelyard.serving.handlers.rest._catalog import config_json, models_json
from modelyard.serving.handlers.rest._floats import float_texts
from modelyard.serving.handlers.rest._json import parse_object, quote
from modelyard.serving.handlers.rest._sagemaker import SageMakerApp
from modelyard.serving.handlers.rest._tensors import value_to_array
from modelyard.serving.handlers.rest._types import RestOptions, error_answer

__all__ = [
    "RestApp",
    "RestOptions",
    "SageMakerApp",
    "config_json",
    "error_answer",
    "float_texts",
    "models_json",
    "parse_object",
    "quote",
    "value_to_array",
]
