"""Bodies of inferences over REST: the JSON part, and binary tensors behind it."""

from __future__ import annotations

from modelyard.errors import InvalidRequestError
from modelyard.serving.handlers.oip._compression import compress, preferred_encoding
from modelyard.serving.handlers.oip._rest_codec import infer_request, infer_response, raw_request
from modelyard.serving.handlers.oip._types import InferRequest, InferResult
from modelyard.serving.handlers.rest import parse_object
from modelyard.serving.requests import whole_number
from modelyard.serving.transports.http import Answer

JSON = (b"content-type", b"application/json")
_BINARY = (b"content-type", b"application/octet-stream")
#: Also the header's name in a mapping of headers.
LENGTH_KEY = b"inference-header-content-length"


def read_call(body: bytes, json_length: str | None, model: str, version: str, *, max_depth: int) -> InferRequest:
    """Reads a request.

    Args:
        body: The body.
        json_length: The header of that name; None where it was not sent.
        model: The model, from the URL.
        version: The version, from the URL.
        max_depth: Levels of nesting that are accepted.

    Raises:
        InvalidInputError: The binary part has another length than the inputs take.
        InvalidRequestError: No JSON, or a field is missing or of another type.
        UnsupportedError: Shared memory.
    """
    length = len(body) if json_length is None else check_json_length(json_length, len(body))
    if length == 0 and json_length is not None:
        return raw_request(body, model=model, version=version)
    tail = memoryview(body)[length:]
    document = parse_object(body[:length], max_depth=max_depth, strict_text=True)
    return infer_request(document, tail, model=model, version=version)


def check_json_length(text: str, size: int) -> int:
    """The length of the JSON part.

    Args:
        text: What the header says.
        size: Bytes of the body.

    Raises:
        InvalidRequestError: It is no number, or larger than the body.
    """
    length = whole_number(text, size)
    if length is None:
        raise InvalidRequestError(
            f"Inference-Header-Content-Length is {text!r}; expected the length of the JSON part, 0 to {size}."
        )
    return length


def compressed(answer: Answer, accepted: str) -> Answer:
    """An answer in the encoding that the caller likes best.

    Args:
        answer: The answer.
        accepted: The Accept-Encoding header.
    """
    encoding = preferred_encoding(accepted)
    if encoding is None or not answer.body:
        return answer
    headers = [*answer.headers, (b"content-encoding", encoding.encode())]
    return Answer(status=answer.status, body=compress(answer.body, encoding), headers=headers)


def answer_of(result: InferResult, *, strict: bool) -> Answer:
    """The HTTP answer of an inference.

    Args:
        result: The inference.
        strict: NaN and infinities are refused in JSON.

    Raises:
        InvalidInputError: Strict, and an output that is not binary holds NaN or an infinity.
        InvalidRequestError: An output is not binary and JSON cannot carry it.
    """
    text, tail = infer_response(result, strict=strict)
    if not any(output.binary for output in result.outputs):
        return Answer(status=200, body=text, headers=[JSON])
    return Answer(status=200, body=text + tail, headers=[_BINARY, (LENGTH_KEY, str(len(text)).encode())])
