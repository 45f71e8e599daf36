"""The REST API, with no server in it."""

from modelyard.serving.handlers.rest._app import RestApp
from modelyard.serving.handlers.rest._catalog import config_json, models_json
from modelyard.serving.handlers.rest._counted import counted
from modelyard.serving.handlers.rest._floats import float_texts
from modelyard.serving.handlers.rest._json import parse_object, quote
from modelyard.serving.handlers.rest._sagemaker import SageMakerApp
from modelyard.serving.handlers.rest._tensors import value_to_array
from modelyard.serving.handlers.rest._types import Page, RestOptions, admit, error_answer, hints_of

__all__ = [
    "Page",
    "RestApp",
    "RestOptions",
    "SageMakerApp",
    "admit",
    "config_json",
    "counted",
    "error_answer",
    "float_texts",
    "hints_of",
    "models_json",
    "parse_object",
    "quote",
    "value_to_array",
]
