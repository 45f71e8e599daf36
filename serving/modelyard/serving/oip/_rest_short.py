"""Small inferences over REST on the short way: what a client repeats is worked out once."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import unquote

import numpy.typing as npt

from modelyard.artifact import Signature
from modelyard.errors import InternalError, InvalidRequestError
from modelyard.serving._predictor import Predictor
from modelyard.serving._requests import Arrays, Caller, Prediction, PredictRequest
from modelyard.serving.http1 import Answer, Headers
from modelyard.serving.oip._arrays import array_to_raw
from modelyard.serving.oip._compression import compress, preferred_encoding
from modelyard.serving.oip._rest_codec import PreparedRequest, infer_response, prepare_request, raw_request
from modelyard.serving.oip._service import infer_result, predict_request
from modelyard.serving.oip._types import InferRequest, InferResult
from modelyard.serving.rest import RestOptions, error_answer
from modelyard.serving.rest._json import parse_object
from modelyard.serving.rest._types import HttpBegin

MODEL = r"/v2/models/([^/]+)(?:/versions/([^/]+))?"
_INFER_PATH = re.compile(rf"{MODEL}/infer")
JSON = (b"content-type", b"application/json")
_BINARY = (b"content-type", b"application/octet-stream")
#: Also the header's name in a mapping of headers.
LENGTH_KEY = b"inference-header-content-length"
#: JSON parts up to this size are remembered, and so many of them.
_MAX_KNOWN_BYTES = 4096
_MAX_KNOWN = 256
#: Forms of the answer to one request that are remembered: a BYTES output has many.
_MAX_FORMS = 64


class OipShortWay:
    """Finds who answers a URL on the short way.

    Args:
        predictor: The data plane.
        options: Limits.
    """

    def __init__(self, predictor: Predictor, options: RestOptions) -> None:
        self._predictor = predictor
        self._options = options
        self._known: dict[tuple[bytes, int, str, str], ShortInference] = {}

    def find(self, path: str) -> HttpBegin | None:
        """Who answers a POST to a path without a task.

        Args:
            path: As sent.

        Returns:
            None for everything but inference.
        """
        match = _INFER_PATH.fullmatch(path)
        if match is None:
            return None
        model, version = (unquote(group or "") for group in match.groups())

        def begin(
            headers: Mapping[bytes, bytes], body: bytes, caller: Caller, respond: Callable[[Answer], object]
        ) -> None:
            def done(answer: Answer | None, error: BaseException | None) -> None:
                if answer is None:
                    error = error or InternalError("No answer. This is a bug.")
                    answer = error_answer(error, path, caller=caller, indent=None)
                accepted = headers.get(b"accept-encoding")
                respond(answer if accepted is None else compressed(answer, accepted.decode("latin-1")))

            try:
                request, encode = self._request(headers.get(LENGTH_KEY), body, caller, model, version)
            except Exception as exc:
                done(None, exc)
                return
            self._predictor.begin(request, encode, done)

        return begin

    def _request(
        self, json_length: bytes | None, body: bytes, caller: Caller, model: str, version: str
    ) -> tuple[PredictRequest, Callable[[Prediction], Answer]]:
        strict, depth = self._options.strict_json, self._options.max_json_depth
        text = None if json_length is None else json_length.decode("latin-1")
        length = None if text is None else check_json_length(text, len(body))
        if length and length <= _MAX_KNOWN_BYTES:
            # The JSON part before binary tensors is the same in every request of a client.
            key = (body[:length], len(body) - length, model, version)
            known = self._known.get(key)
            if known is None:
                prepared = prepare_request(parse_object(key[0], max_depth=depth), key[1])
                known = ShortInference(prepared, model=model, version=version, strict=strict)
                if len(self._known) >= _MAX_KNOWN:
                    self._known.clear()
                self._known[key] = known
            return known.request(memoryview(body)[length:], caller), known.encode
        call = read_call(body, text, model, version, max_depth=depth)
        request = predict_request(replace(call, small=True, caller=caller, size=len(body)))
        return request, lambda prediction: answer_of(infer_result(call, prediction), strict=strict)


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
    document = parse_object(body[:length], max_depth=max_depth)
    return prepare_request(document, len(tail)).bind(tail, model=model, version=version)


def check_json_length(text: str, size: int) -> int:
    """The length of the JSON part.

    Args:
        text: What the header says.
        size: Bytes of the body.

    Raises:
        InvalidRequestError: It is no number, or larger than the body.
    """
    if not (text.isascii() and text.isdecimal()) or int(text[:20]) > size:
        raise InvalidRequestError(
            f"Inference-Header-Content-Length is {text!r}; expected the length of the JSON part, 0 to {size}."
        )
    return int(text)


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


class ShortInference:
    """The requests that have the same JSON part, before binary tensors.

    Args:
        prepared: The JSON part.
        model: The model, from the URL.
        version: The version, from the URL.
        strict: NaN and infinities are refused in JSON.

    Raises:
        InvalidRequestError: The version or the signature makes no sense.
    """

    def __init__(self, prepared: PreparedRequest, *, model: str, version: str, strict: bool) -> None:
        self._prepared = prepared
        self._infer = prepared.bind(memoryview(b""), model=model, version=version)
        self._predict = predict_request(self._infer)
        self._strict = strict
        outputs = prepared.outputs
        #: Whether the JSON part of an answer depends on nothing but the form of its outputs.
        self._formal = all(item.binary and not item.classification for item in outputs) if outputs else prepared.binary
        self._forms: dict[Any, tuple[bytes, Headers]] = {}

    def request(self, tail: memoryview, caller: Caller) -> PredictRequest:
        """One of the requests.

        Args:
            tail: The binary part.
            caller: Who waits for the answer.
        """

        def inputs(_: Signature) -> Arrays:
            return self._prepared.arrays(tail)

        return PredictRequest(
            spec=self._predict.spec,
            inputs=inputs,
            output_filter=self._predict.output_filter,
            small=True,
            caller=caller,
            size=len(tail),
        )

    def encode(self, prediction: Prediction) -> Answer:
        """The answer to one of the requests.

        Args:
            prediction: What the data plane says.
        """
        if not self._formal:
            return answer_of(infer_result(self._infer, prediction), strict=self._strict)
        arrays = [prediction.outputs[name] for name in self._predict.output_filter or prediction.outputs]
        parts = list(map(array_to_raw, arrays))
        form = (prediction.spec.version, *map(_form, arrays, parts))
        known = self._forms.get(form)
        if known is None:
            text, _ = infer_response(infer_result(self._infer, prediction))
            known = text, [_BINARY, (LENGTH_KEY, str(len(text)).encode())]
            if len(self._forms) < _MAX_FORMS:
                self._forms[form] = known
        text, headers = known
        return Answer(status=200, body=b"".join([text, *parts]), headers=headers)


def _form(array: npt.NDArray[Any], data: bytes) -> tuple[Any, ...]:
    return array.dtype, array.shape, len(data)


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
