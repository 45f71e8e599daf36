"""Status codes of both transports for every error class, and back.

The tables are complete: a test fails when a class of ``modelyard.errors`` is in
neither. The domain errors themselves know no code.
"""

from __future__ import annotations

from modelyard import errors
from modelyard.wire._generated import error_pb2

#: Canonical codes: gRPC's status codes and ``tensorflow.error.Code`` have the same numbers and names.
GRPC_STATUS: dict[type[errors.ModelyardError], str] = {
    errors.ModelyardError: "UNKNOWN",
    errors.RequestError: "INVALID_ARGUMENT",
    errors.InvalidRequestError: "INVALID_ARGUMENT",
    errors.InvalidModelSpecError: "INVALID_ARGUMENT",
    errors.InvalidInputError: "INVALID_ARGUMENT",
    errors.ImageDecodeError: "INVALID_ARGUMENT",
    errors.RequestTooLargeError: "RESOURCE_EXHAUSTED",
    errors.ModelNotFoundError: "NOT_FOUND",
    errors.ModelNotReadyError: "FAILED_PRECONDITION",
    errors.FixedConfigurationError: "FAILED_PRECONDITION",
    errors.SignatureNotFoundError: "FAILED_PRECONDITION",
    errors.UnsupportedError: "UNIMPLEMENTED",
    errors.UnauthenticatedError: "UNAUTHENTICATED",
    errors.PermissionDeniedError: "PERMISSION_DENIED",
    errors.ServerError: "UNKNOWN",
    errors.UnavailableError: "UNAVAILABLE",
    errors.OverloadedError: "RESOURCE_EXHAUSTED",
    errors.DeadlineExceededError: "DEADLINE_EXCEEDED",
    errors.RequestCancelledError: "CANCELLED",
    # The kernels of TensorFlow answer INVALID_ARGUMENT where a shape does not suit the graph.
    errors.PredictionError: "INVALID_ARGUMENT",
    errors.InternalError: "INTERNAL",
    errors.ProtocolError: "INTERNAL",
    errors.ArtifactError: "FAILED_PRECONDITION",
    errors.ManifestError: "FAILED_PRECONDITION",
    errors.IntegrityError: "DATA_LOSS",
    errors.PublishError: "ABORTED",
    errors.LoadError: "FAILED_PRECONDITION",
    errors.ExportError: "INTERNAL",
    errors.ConversionError: "INTERNAL",
    errors.VerificationError: "INTERNAL",
    errors.TrainingError: "INTERNAL",
    errors.DatasetNotFoundError: "NOT_FOUND",
    errors.CheckpointError: "DATA_LOSS",
    errors.NonFiniteLossError: "INTERNAL",
    errors.ConfigurationError: "INVALID_ARGUMENT",
    errors.MissingDependencyError: "FAILED_PRECONDITION",
    errors.LoadTestError: "INTERNAL",
    errors.DeploymentError: "INTERNAL",
}

#: TensorFlow Serving's mapping from canonical codes to HTTP.
_HTTP_OF_CODE: dict[str, int] = {
    "OK": 200,
    "CANCELLED": 499,
    "UNKNOWN": 500,
    "INVALID_ARGUMENT": 400,
    "DEADLINE_EXCEEDED": 504,
    "NOT_FOUND": 404,
    "ALREADY_EXISTS": 409,
    "PERMISSION_DENIED": 403,
    "RESOURCE_EXHAUSTED": 429,
    "FAILED_PRECONDITION": 400,
    "ABORTED": 409,
    "OUT_OF_RANGE": 400,
    "UNIMPLEMENTED": 501,
    "INTERNAL": 500,
    "UNAVAILABLE": 503,
    "DATA_LOSS": 500,
    "UNAUTHENTICATED": 401,
}

HTTP_STATUS: dict[type[errors.ModelyardError], int] = {
    **{kind: _HTTP_OF_CODE[code] for kind, code in GRPC_STATUS.items()},
    errors.RequestTooLargeError: 413,
}

#: HTTP has fewer codes than gRPC: codes that share an HTTP status share an error, so that both transports agree.
_ERROR_OF_GRPC: dict[str, type[errors.ModelyardError]] = {
    "CANCELLED": errors.RequestCancelledError,
    "UNKNOWN": errors.InternalError,
    "INVALID_ARGUMENT": errors.InvalidRequestError,
    "DEADLINE_EXCEEDED": errors.DeadlineExceededError,
    "NOT_FOUND": errors.ModelNotFoundError,
    "ALREADY_EXISTS": errors.ServerError,
    "PERMISSION_DENIED": errors.PermissionDeniedError,
    "RESOURCE_EXHAUSTED": errors.OverloadedError,
    "FAILED_PRECONDITION": errors.InvalidRequestError,
    "ABORTED": errors.ServerError,
    "OUT_OF_RANGE": errors.InvalidRequestError,
    "UNIMPLEMENTED": errors.UnsupportedError,
    "INTERNAL": errors.InternalError,
    "UNAVAILABLE": errors.UnavailableError,
    "DATA_LOSS": errors.InternalError,
    "UNAUTHENTICATED": errors.UnauthenticatedError,
}

_ERROR_OF_HTTP: dict[int, type[errors.ModelyardError]] = {
    400: errors.InvalidRequestError,
    401: errors.UnauthenticatedError,
    403: errors.PermissionDeniedError,
    404: errors.ModelNotFoundError,
    405: errors.UnsupportedError,
    409: errors.ServerError,
    413: errors.RequestTooLargeError,
    429: errors.OverloadedError,
    499: errors.RequestCancelledError,
    500: errors.InternalError,
    501: errors.UnsupportedError,
    503: errors.UnavailableError,
    504: errors.DeadlineExceededError,
}

_Fragments = tuple[tuple[str, type[errors.ModelyardError]], ...]

#: Fragments of messages that tell failures apart where the codes of one transport or of both do not.
_INVALID: _Fragments = (
    ("Serving signature key", errors.SignatureNotFoundError),
    ("Serving signature name:", errors.SignatureNotFoundError),
    ("No signature was found with the name", errors.SignatureNotFoundError),
    ("Requested signature not found in model graph", errors.SignatureNotFoundError),
    ("Unrecognized servable version label", errors.InvalidModelSpecError),
    ("Missing ModelSpec", errors.InvalidModelSpecError),
    ("ModelSpec has no name", errors.InvalidModelSpecError),
    ("Missing model name in request", errors.InvalidModelSpecError),
    ("not a complete image", errors.ImageDecodeError),
    ("has no grey decode", errors.ImageDecodeError),
    ("input size does not match signature", errors.InvalidInputError),
    ("Signature input alias:", errors.InvalidInputError),
    ("Inputs contains invalid name", errors.InvalidInputError),
    ("Missing named input:", errors.InvalidInputError),
    ("output tensor alias", errors.InvalidInputError),
    ("Expects arg[", errors.InvalidInputError),
    ("is not of expected type", errors.InvalidInputError),
    ("tensor parsing error", errors.InvalidInputError),
    ("(-1 is any size)", errors.InvalidInputError),
    ("not currently available for inference", errors.ModelNotReadyError),
)
_EXHAUSTED: _Fragments = (
    ("larger than ", errors.RequestTooLargeError),
    ("has more than ", errors.RequestTooLargeError),
    ("does not fit into memory", errors.RequestTooLargeError),
    ("in all are accepted", errors.RequestTooLargeError),
)
_FINER: dict[str | int, _Fragments] = {
    "INVALID_ARGUMENT": _INVALID,
    "FAILED_PRECONDITION": _INVALID,
    400: _INVALID,
    "RESOURCE_EXHAUSTED": _EXHAUSTED,
    429: _EXHAUSTED,
}


def grpc_status_of(error: errors.ModelyardError) -> str:
    """Name of the canonical (gRPC) status code of an error, such as ``NOT_FOUND``.

    Args:
        error: Any error of the tree.
    """
    return next(GRPC_STATUS[kind] for kind in type(error).__mro__ if kind in GRPC_STATUS)


def http_status_of(error: errors.ModelyardError) -> int:
    """HTTP status of an error.

    Args:
        error: Any error of the tree.
    """
    return next(HTTP_STATUS[kind] for kind in type(error).__mro__ if kind in HTTP_STATUS)


def error_code_of(error: errors.ModelyardError) -> int:
    """Number of the canonical status code, as ``tensorflow.error.Code`` has it.

    Args:
        error: Any error of the tree.
    """
    return error_pb2.Code.Value(grpc_status_of(error))


def error_from_grpc(code: str, message: str) -> errors.ModelyardError:
    """The error that a gRPC status stands for.

    Args:
        code: Name of the code, such as ``NOT_FOUND``.
        message: The server's text.
    """
    return _error(_ERROR_OF_GRPC.get(code, errors.ServerError), code, message)


def error_from_http(status: int, message: str) -> errors.ModelyardError:
    """The error that an HTTP status stands for.

    Args:
        status: Any status of 400 or more.
        message: The server's text.
    """
    fallback = errors.InvalidRequestError if status < 500 else errors.ServerError
    return _error(_ERROR_OF_HTTP.get(status, fallback), status, message)


def _error(kind: type[errors.ModelyardError], code: str | int, message: str) -> errors.ModelyardError:
    return next((finer for text, finer in _FINER.get(code, ()) if text in message), kind)(message)
