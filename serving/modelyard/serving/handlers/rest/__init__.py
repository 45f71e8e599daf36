"""The REST API, with no server in it."""

from modelyard.serving.handlers.rest._app import RestApp
from modelyard.serving.handlers.rest._catalog import config_json, models_json, read_loaded, signatures_of, statuses_of
from modelyard.serving.handlers.rest._floats import float_texts
from modelyard.serving.handlers.rest._inflate import WBITS, decompress
from modelyard.serving.handlers.rest._json import objects_size, parse_object, quote
from modelyard.serving.handlers.rest._sagemaker import SageMakerApp
from modelyard.serving.handlers.rest._tensors import value_to_array
from modelyard.serving.handlers.rest._types import Page, admit, counted, error_answer, hints_of

__all__ = [
    "Page",
    "RestApp",
    "SageMakerApp",
    "WBITS",
    "admit",
    "config_json",
    "counted",
    "decompress",
    "error_answer",
    "float_texts",
    "hints_of",
    "models_json",
    "objects_size",
    "parse_object",
    "quote",
    "read_loaded",
    "signatures_of",
    "statuses_of",
    "value_to_array",
]
