"""Status tables are complete, and both transports tell the same failure by the same class."""

from __future__ import annotations

import inspect

import grpc
import pytest

from modelyard import errors
from modelyard.wire import (
    GRPC_STATUS,
    HTTP_STATUS,
    error_code_of,
    error_from_grpc,
    error_from_http,
    error_pb2,
    grpc_status_of,
    http_status_of,
)

CLASSES = [kind for kind in vars(errors).values() if inspect.isclass(kind) and issubclass(kind, errors.ModelyardError)]
#: wire-facts: TensorFlow Serving's mapping.
HTTP_OF_CODE = {
    "CANCELLED": 499, "UNKNOWN": 500, "INVALID_ARGUMENT": 400, "DEADLINE_EXCEEDED": 504, "NOT_FOUND": 404,
    "ALREADY_EXISTS": 409, "PERMISSION_DENIED": 403, "RESOURCE_EXHAUSTED": 429, "FAILED_PRECONDITION": 400,
    "ABORTED": 409, "OUT_OF_RANGE": 400, "UNIMPLEMENTED": 501, "INTERNAL": 500, "UNAVAILABLE": 503,
    "DATA_LOSS": 500, "UNAUTHENTICATED": 401,
}  # fmt: skip


def make(kind: type[errors.ModelyardError]) -> errors.ModelyardError:
    if kind is errors.MissingDependencyError:
        return errors.MissingDependencyError(package="p", extra="e", purpose="t")
    return kind("text")


def test_every_class_is_in_both_tables() -> None:
    assert set(GRPC_STATUS) == set(HTTP_STATUS) == set(CLASSES)


def test_codes_are_the_canonical_ones() -> None:
    names = {code.name: code.value[0] for code in grpc.StatusCode}
    assert {name: error_pb2.Code.Value(name) for name in names} == names
    assert set(GRPC_STATUS.values()) <= set(names)
    assert set(HTTP_OF_CODE) == set(names) - {"OK"}


@pytest.mark.parametrize("kind", CLASSES)
def test_http_follows_from_the_canonical_code(kind: type[errors.ModelyardError]) -> None:
    error = make(kind)
    code = grpc_status_of(error)
    assert code == GRPC_STATUS[kind]
    assert error_code_of(error) == error_pb2.Code.Value(code)
    expected = 413 if kind is errors.RequestTooLargeError else HTTP_OF_CODE[code]
    assert http_status_of(error) == expected


def test_subclasses_elsewhere_count_as_their_base() -> None:
    class Local(errors.ModelNotFoundError):
        pass

    assert (grpc_status_of(Local("x")), http_status_of(Local("x"))) == ("NOT_FOUND", 404)


@pytest.mark.parametrize("code", sorted(HTTP_OF_CODE))
def test_the_same_code_is_the_same_class_over_both_transports(code: str) -> None:
    over_grpc, over_http = error_from_grpc(code, "text"), error_from_http(HTTP_OF_CODE[code], "text")
    assert type(over_grpc) is type(over_http)
    assert over_grpc.message == over_http.message == "text"


@pytest.mark.parametrize(
    ("kind", "grpc_text", "http_text"),
    [
        (
            errors.SignatureNotFoundError,
            'Serving signature key "S" not found.',
            'Serving signature name: "S" not found in signature def',
        ),
        (errors.InvalidModelSpecError, "Missing ModelSpec", "Missing model name in request."),
        (
            errors.InvalidModelSpecError,
            "Unrecognized servable version label: L",
            "Unrecognized servable version label: L",
        ),
        (
            errors.InvalidInputError,
            "input size does not match signature: 0!=1 len({}) != len({x}).",
            "Missing named input: x in 'inputs' object.",
        ),
        (
            errors.InvalidInputError,
            "Expects arg[0] to be float but string is provided",
            'JSON Value: "a" Type: String is not of expected type: float',
        ),
        (
            errors.ImageDecodeError,
            "3 bytes are not a complete image of a known format",
            "3 bytes are not a complete image",
        ),
    ],
)
def test_messages_refine_the_class(kind: type[errors.ModelyardError], grpc_text: str, http_text: str) -> None:
    assert type(error_from_grpc(GRPC_STATUS[kind], grpc_text)) is kind
    assert type(error_from_http(HTTP_STATUS[kind], http_text)) is kind


def test_too_large_is_told_from_overloaded() -> None:
    text = "CLIENT: Received message larger than max (5 vs. 4)"
    assert type(error_from_grpc("RESOURCE_EXHAUSTED", text)) is errors.RequestTooLargeError
    assert type(error_from_grpc("RESOURCE_EXHAUSTED", "the queue is full")) is errors.OverloadedError
    assert type(error_from_http(413, "anything")) is errors.RequestTooLargeError


@pytest.mark.parametrize(
    ("status", "kind"), [(418, errors.InvalidRequestError), (405, errors.UnsupportedError), (599, errors.ServerError)]
)
def test_other_http_statuses_have_a_class_too(status: int, kind: type[errors.ModelyardError]) -> None:
    assert type(error_from_http(status, "text")) is kind


def test_unknown_grpc_codes_are_server_errors() -> None:
    assert type(error_from_grpc("NEW_CODE", "text")) is errors.ServerError
