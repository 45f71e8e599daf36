"""The OpenAPI 3.1 document: every route of the REST API, and each loaded model's own requests and answers."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote

from modelyard.artifact import CLASSIFY_METHOD, REGRESS_METHOD, Signature
from modelyard.serving.handlers.oip import ROUTES
from modelyard.serving.handlers.openapi._examples import example_body, request_url
from modelyard.serving.handlers.openapi._schemas import (
    COMPONENTS,
    Schema,
    infer_request,
    object_of,
    predict_answer,
    predict_request,
    ref,
)
from modelyard.serving.requests import MAX_VERSION
from modelyard.wire import OIP_DATATYPES

Operation = dict[str, Any]

_V1 = "TensorFlow Serving"
_V2 = "Open Inference Protocol"
_SERVER = "Server"
_INFO = (
    "TensorFlow Serving's REST API (/v1) and the Open Inference Protocol with Triton's extensions (/v2). "
    "Paths with a model's name describe the signatures of the version that answers now."
)
#: What any request may be answered with that cannot be served; 401 and 403 where the server asks for credentials.
_ERRORS = (400, 401, 403, 404, 413, 429, 501, 503, 504)
_PARAMETERS: Mapping[str, Operation] = {
    "model": {"schema": {"type": "string", "pattern": "^[^/:]+$"}, "description": "Name of the model."},
    "version": {"schema": {"type": "integer", "minimum": 0, "maximum": MAX_VERSION}, "description": "A version."},
    "label": {"schema": {"type": "string", "pattern": "^[^/:]+$"}, "description": "A version's label."},
}
_SIGNATURE_NAME: Operation = {
    "name": "signature_name",
    "in": "query",
    "schema": {"type": "string"},
    "description": "A signature; serving_default where it is absent.",
}
_BINARY = (
    "Tensors may follow the JSON part as bytes (`parameters.binary_data_size` of each); the header "
    "Inference-Header-Content-Length then says how long the JSON part is. With 0 the body is the model's one input."
)
_OF_MODEL = ("", "/versions/{version}", "/labels/{label}")
#: Verb, summary, request and answer.
_V1_CALLS = (
    ("predict", "Call a signature.", "PredictRequest", "PredictAnswer"),
    ("classify", "Classes of examples, with scores.", "ExamplesRequest", "Classifications"),
    ("regress", "A number for each example.", "ExamplesRequest", "Regressions"),
)
#: What is at most on a page of its own: summary and schema.
_PAGES: Mapping[str, tuple[str, Schema]] = {
    "/v1/models": ("All models: versions, states, labels, signatures.", ref("Models")),
    "/v2/config": ("The configuration in force; secrets are masked.", {"type": "object"}),
    "/v2/traffic": ("Splits, shadows and rollbacks.", {"type": "object"}),
    "/openapi.json": ("This document.", {"type": "object"}),
}
#: By operation of :data:`ROUTES`: summary, request and answer; no answer where the status says it all.
_V2_OPERATIONS: Mapping[str, tuple[str, str, str]] = {
    "server_metadata": ("Name, version and extensions of the server.", "", "ServerMetadata"),
    "live": ("Whether the process runs.", "", "Live"),
    "ready": ("Whether every model that is meant to be loaded can answer.", "", "Ready"),
    "statistics": ("Requests, batches, and where their time went.", "", "Statistics"),
    "model_ready": ("Whether a model, or one version of it, can answer.", "", "ModelReady"),
    "infer": ("Call a signature.", "InferRequest", "InferAnswer"),
    "model_config": ("A model's configuration in Triton's form.", "", "V2ModelConfig"),
    "model_metadata": ("Versions, inputs and outputs of a model.", "", "V2ModelMetadata"),
    "index": ("All models and versions with their states.", "IndexRequest", "Index"),
    "log_settings": ("What the server's log tells.", "", "LogSettings"),
    "change_log_settings": ("Change that while the server runs.", "LogChanges", "LogSettings"),
    "load": ("Load a model.", "ControlRequest", ""),
    "unload": ("Unload a model.", "ControlRequest", ""),
}


def openapi_document(
    models: Mapping[str, Mapping[str, Signature]],
    *,
    version: str,
    metrics_paths: Sequence[str] = (),
    pages: Collection[str] = (),
    sagemaker: bool = False,
) -> dict[str, Any]:
    paths: dict[str, dict[str, Operation]] = {}
    identifiers: Counter[str] = Counter()
    for path, method, operation in (
        *_models(models),
        *_v1(),
        *_v2(),
        *_server(metrics_paths, sorted(pages)),
        *(_sagemaker() if sagemaker else ()),
    ):
        identifier = f"{method}{re.sub(r'[^0-9A-Za-z]+', '_', path)}".rstrip("_")
        identifiers[identifier] += 1
        count = identifiers[identifier]
        operation["operationId"] = identifier if count == 1 else f"{identifier}_{count}"
        operation["parameters"] = [*_path_parameters(path), *operation.get("parameters", ())]
        paths.setdefault(path, {})[method] = operation
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "modelyard",
            "version": version,
            "description": _INFO,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "tags": [*({"name": f"Model {name}"} for name in models), *({"name": tag} for tag in (_V1, _V2, _SERVER))],
        "paths": paths,
        "components": {
            "schemas": COMPONENTS,
            "responses": {"Error": {"description": "Refused, and why.", "content": _json(ref("Error"))}},
        },
    }


def _models(models: Mapping[str, Mapping[str, Signature]]) -> Iterator[tuple[str, str, Operation]]:
    for name, signatures in models.items():
        place, tag = f"models/{quote(name, safe='')}", f"Model {name}"
        yield (
            f"/v1/{place}:predict",
            "post",
            _operation(
                f"Call a signature of {name}.",
                tag,
                body=predict_request(signatures),
                answer=predict_answer(signatures),
                examples=_examples(signatures, name, "predict"),
            ),
        )
        for verb, summary, request, answer in _V1_CALLS[1:]:
            if any(signature.method == _METHODS[verb] for signature in signatures.values()):
                examples = _examples(signatures, name, verb)
                yield (
                    f"/v1/{place}:{verb}",
                    "post",
                    _operation(summary, tag, body=ref(request), answer=ref(answer), examples=examples),
                )
        body = infer_request(signatures, OIP_DATATYPES)
        if body["anyOf"]:
            summary = f"Call a signature of {name}."
            yield f"/v2/{place}/infer", "post", _operation(summary, tag, body=body, answer=ref("InferAnswer"))


_METHODS = {"classify": CLASSIFY_METHOD, "regress": REGRESS_METHOD}


def _examples(signatures: Mapping[str, Signature], model: str, verb: str) -> dict[str, Any]:
    found = {}
    for name, signature in signatures.items():
        body = example_body(name, signature)
        if body is not None and request_url(model, signature).endswith(f":{verb}"):
            found[name] = {"value": body}
    return found


def _v1() -> Iterator[tuple[str, str, Operation]]:
    for between in _OF_MODEL:
        place = "/v1/models/{model}" + between
        status = _operation("States of a model's versions.", _V1, answer=ref("ModelStatus"))
        status["responses"]["503"] = {
            "description": "The states, where the server has not started with the model yet; or refused, and why.",
            "content": _json({"anyOf": [ref("ModelStatus"), ref("Error")]}),
        }
        yield place, "get", status
        yield f"{place}/metadata", "get", _operation("Signatures of a model.", _V1, answer=ref("ModelMetadata"))
        for verb, summary, request, answer in _V1_CALLS:
            yield f"{place}:{verb}", "post", _operation(summary, _V1, body=ref(request), answer=ref(answer))


def _v2() -> Iterator[tuple[str, str, Operation]]:
    for method, route, name, _ in ROUTES:
        summary, request, answer = _V2_OPERATIONS[name]
        for path in _spelt(route):
            operation = _operation(
                summary, _V2, body=ref(request) if request else None, answer=ref(answer) if answer else None
            )
            if request:
                # An inference may be a tensor of no bytes; the others have defaults for everything.
                operation["requestBody"]["required"] = False
            if request == "InferRequest":
                operation["requestBody"]["content"]["application/octet-stream"] = {}
                operation["description"] = _BINARY
                operation["responses"]["200"]["content"]["application/octet-stream"] = {}
            if name in ("model_metadata", "model_config"):
                operation["parameters"] = [_SIGNATURE_NAME]
            if not answer and not request:
                operation["responses"]["400"] = {"description": "No."}
            yield path, method.lower(), operation


def _spelt(route: str) -> list[str]:
    """A route without and with its part in brackets; no repository but the one without a name is served."""
    short, long = re.sub(r"\[[^]]*\]", "", route), re.sub(r"[\[\]]", "", route)
    return [short] if long == short or "{repository}" in long else [short, long]


def _server(metrics_paths: Sequence[str], pages: Sequence[str]) -> Iterator[tuple[str, str, Operation]]:
    for path in pages:
        summary, schema = _PAGES[path]
        yield path, "get", _operation(summary, _SERVER, answer=schema)
    for path in metrics_paths:
        operation = _operation("Prometheus' metrics.", _SERVER)
        operation["responses"]["200"]["content"] = {"text/plain": {"schema": {"type": "string"}}}
        yield path, "get", operation


def _sagemaker() -> Iterator[tuple[str, str, Operation]]:
    ping = _operation("Amazon SageMaker's question whether the server is ready.", _SERVER)
    ping["responses"]["400"] = {"description": "No."}
    yield "/ping", "get", ping
    summary = "Amazon SageMaker's call of a model; a header says of which."
    yield (
        "/invocations",
        "post",
        _operation(summary, _SERVER, body=object_of({}), answer={"type": "object"}),
    )


def _operation(
    summary: str,
    tag: str,
    *,
    body: Schema | None = None,
    answer: Schema | None = None,
    examples: Mapping[str, object] | None = None,
) -> Operation:
    operation: Operation = {
        "summary": summary,
        "tags": [tag],
        "responses": {
            "200": {"description": "Answered."} | ({"content": _json(answer)} if answer is not None else {}),
            **{str(status): {"$ref": "#/components/responses/Error"} for status in _ERRORS},
        },
    }
    if body is not None:
        operation["requestBody"] = {"required": True, "content": _json(body)}
        if examples:
            operation["requestBody"]["content"]["application/json"]["examples"] = examples
    return operation


def _json(schema: Schema) -> dict[str, object]:
    return {"application/json": {"schema": schema}}


def _path_parameters(path: str) -> list[Operation]:
    return [
        {"name": name, "in": "path", "required": True, **_PARAMETERS[name]} for name in re.findall(r"\{(\w+)\}", path)
    ]
