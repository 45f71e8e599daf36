"""Predictions over REST on the short way: found by their URL, answered by callbacks."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

from modelyard.artifact import Signature
from modelyard.errors import ModelyardError
from modelyard.serving._encoding import BatchEncoder
from modelyard.serving._metrics import Metrics
from modelyard.serving._predictor import Predictor
from modelyard.serving._requests import Arrays, Caller, ModelSpec, Prediction, PredictRequest
from modelyard.serving.http1 import Answer, Begin, Head, Respond
from modelyard.serving.rest import _predict
from modelyard.serving.rest._types import HttpBegin, RestOptions, error_answer, json_answer, late, reworded
from modelyard.serving.rest._urls import NoSuchUrl, Route, parse_route
from modelyard.wire import grpc_status_of

#: What asks for more than the short way can.
_LONG = (b"content-encoding", b"origin")


@lru_cache(maxsize=256)
def _with_signature(spec: ModelSpec, signature: str) -> ModelSpec:
    return replace(spec, signature=signature)


class _Rows(BatchEncoder):
    """Answers in row form: whole batches at once, for their numbers are cheaper to write together."""

    def __init__(self, options: RestOptions) -> None:
        self._strict, self._extensions = options.strict_json, options.extensions

    def __call__(self, prediction: Prediction) -> Answer:
        text = _predict.predict_answer(prediction.outputs, "row", strict=self._strict, extensions=self._extensions)
        return json_answer(text)

    def together(self, outputs: Arrays, rows: Sequence[int]) -> list[Answer]:
        texts = _predict.row_answers(outputs, rows, strict=self._strict, extensions=self._extensions)
        return [json_answer(text) for text in texts]


def _columns(options: RestOptions, prediction: Prediction) -> Answer:
    text = _predict.predict_answer(
        prediction.outputs, "column", strict=options.strict_json, extensions=options.extensions
    )
    return json_answer(text)


class RestShortWay:
    """Finds who answers a URL on the short way.

    Args:
        predictor: The data plane.
        metrics: Where requests are counted.
        options: What to offer, and limits.
        v2: Finds who answers what is below /v2; None for nobody.
    """

    def __init__(
        self,
        predictor: Predictor,
        metrics: Metrics,
        options: RestOptions,
        *,
        v2: Callable[[str], HttpBegin | None] | None = None,
    ) -> None:
        self._predictor = predictor
        self._metrics = metrics
        self._options = options
        self._v2 = v2
        self._encoders: dict[_predict.Form, Callable[[Prediction], Answer]] = {
            "row": _Rows(options),
            "column": partial(_columns, options),
        }

    def find(self, head: Head) -> Begin | None:
        """Who answers requests with this head; None where they take the long way.

        Args:
            head: The head.
        """
        if head.method != "POST" or head.query or self._options.cors or any(name in head.headers for name in _LONG):
            return None
        path = head.path
        if path.startswith("/v2/") and self._v2 is not None:
            begin = self._v2(path)
            return None if begin is None else partial(self._begin_v2, begin)
        try:
            route = parse_route("POST", path)
        except (ModelyardError, NoSuchUrl):
            # The long way says what is wrong with it.
            return None
        return partial(self._begin, route) if route.verb == "predict" else None

    def _begin_v2(
        self, begin: HttpBegin, headers: Mapping[bytes, bytes], body: bytes | None, caller: Caller, respond: Respond
    ) -> None:
        if body is None:
            respond(error_answer(late(self._options), "v2", indent=None))
        else:
            begin(headers, body, caller, respond)

    def _begin(
        self, route: Route, _: Mapping[bytes, bytes], body: bytes | None, caller: Caller, respond: Respond
    ) -> None:
        started = time.perf_counter()

        def finish(answer: Answer, code: str) -> None:
            if respond(answer):
                seconds = time.perf_counter() - started
                self._metrics.record_request(
                    route.spec.name, api=route.verb, entrypoint="REST", status=code, seconds=seconds
                )

        def fail(error: BaseException) -> None:
            code = grpc_status_of(error) if isinstance(error, ModelyardError) else "INTERNAL"
            finish(error_answer(error, f"POST {route.spec.name}:predict", caller=caller), code)

        def done(answer: Any, error: BaseException | None) -> None:
            if error is None:
                finish(answer, "OK")
            else:
                fail(reworded(error, request.spec.signature_name))

        if body is None:
            fail(late(self._options))
            return
        try:
            request, encode = self._request(route, body, caller)
        except Exception as exc:
            fail(exc)
            return
        self._predictor.begin(request, encode, done)

    def _request(
        self, route: Route, data: bytes, caller: Caller
    ) -> tuple[PredictRequest, Callable[[Prediction], Answer]]:
        options = self._options
        body = _predict.parse_body(data, max_depth=options.max_json_depth)

        def inputs(signature: Signature) -> Arrays:
            return _predict.inputs_of(body, signature, extensions=options.extensions)

        spec = _with_signature(route.spec, body.signature) if body.signature else route.spec
        request = PredictRequest(
            spec=spec,
            inputs=inputs,
            small=True,
            caller=caller,
            size=len(data),
            names=partial(_predict.names_of, body),
        )
        return request, self._encoders[body.form]
