"""The OpenAPI document of the REST API, and valid example bodies for every signature."""

from modelyard.serving.handlers.openapi._document import openapi_document
from modelyard.serving.handlers.openapi._examples import EXAMPLE_VALUES, example_body, request_url

__all__ = [
    "EXAMPLE_VALUES",
    "example_body",
    "openapi_document",
    "request_url",
]
