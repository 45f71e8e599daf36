"""Requests and answers of the data plane, and checks of them."""

from modelyard.serving.requests._context import (
    Facts,
    RequestContext,
    current_request,
    new_request_id,
    unexpected,
)
from modelyard.serving.requests._requests import (
    FIELDS_OF_ONE_CALL,
    PRIORITY_KEY,
    REQUEST_ID,
    Arrays,
    Caller,
    ModelSpec,
    Prediction,
    PredictRequest,
    current_caller,
    request_id_of,
    trace_id_of,
    trace_parent_of,
)
from modelyard.serving.requests._texts import without_paths
from modelyard.serving.requests._validation import (
    MAX_VERSION,
    check_output_filter,
    complete_inputs,
    cpp_dtype_name,
    format_shape,
    other_signature,
    shape_fits,
    whole_number,
)

__all__ = [
    "Arrays",
    "Caller",
    "FIELDS_OF_ONE_CALL",
    "Facts",
    "MAX_VERSION",
    "ModelSpec",
    "PRIORITY_KEY",
    "PredictRequest",
    "Prediction",
    "REQUEST_ID",
    "RequestContext",
    "check_output_filter",
    "complete_inputs",
    "cpp_dtype_name",
    "current_caller",
    "current_request",
    "format_shape",
    "new_request_id",
    "other_signature",
    "request_id_of",
    "shape_fits",
    "trace_id_of",
    "trace_parent_of",
    "unexpected",
    "whole_number",
    "without_paths",
]
