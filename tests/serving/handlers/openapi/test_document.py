"""The document and the routes say the same, and examples are what the servers' own readers take."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from modelyard.artifact import (
    CLASSIFY_METHOD,
    DEFAULT_SIGNATURE,
    ExampleDecode,
    FeatureSpec,
    ImageDecode,
    Signature,
    TensorSpec,
    decode_examples,
    decode_image,
)
from modelyard.serving.handlers.oip import ROUTES
from modelyard.serving.handlers.openapi import example_body, openapi_document, request_url
from modelyard.serving.handlers.rest import _examples, _predict, _urls
from modelyard.serving.requests import complete_inputs

PAGES = ("/v1/models", "/v2/config", "/v2/traffic", "/openapi.json")
VALUES = {"model": "m", "version": "3", "label": "stable"}
DOCUMENT = openapi_document({}, version="1", metrics_paths=("/metrics",), pages=PAGES, sagemaker=True)
OPERATIONS = [(method.upper(), path) for path, methods in DOCUMENT["paths"].items() for method in methods]


def filled(path: str) -> str:
    return path.format(**VALUES)


def templates(method: str) -> list[re.Pattern[str]]:
    """Every path of the document, as a pattern."""
    found = []
    for name, path in OPERATIONS:
        text = re.sub(r"\\\{(\w+)\\\}", lambda match: r"\d+" if match[1] == "version" else "[^/:]+", re.escape(path))
        if name == method:
            found.append(re.compile(text))
    return found


@pytest.mark.parametrize(("method", "path"), [item for item in OPERATIONS if item[1].startswith("/v1/models/")])
def test_what_is_documented_below_v1_is_routed(method: str, path: str) -> None:
    route = _urls.parse_route(method, filled(path))
    spec = route.spec
    assert spec.name == "m"
    assert (spec.version == 3) == ("{version}" in path)
    assert (spec.label == "stable") == ("{label}" in path and route.verb != "status")
    assert route.verb == (re.sub(r".*[:}/](?=\w+$)", "", path) if re.search(r"[:/]\w+$", path) else "status")


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_what_is_routed_below_v1_is_documented(data: st.DataObject) -> None:
    patterns = [("POST", _urls._INFER), ("GET", _urls._METADATA), ("GET", _urls._STATUS)]
    method, pattern = data.draw(st.sampled_from(patterns))
    simple = pattern.pattern.replace("[^/:]", "[a-z]").replace(r"\d", "[0-9]")
    path = data.draw(st.from_regex(simple, fullmatch=True))
    if path != "/v1/models":
        assert any(template.fullmatch(path) for template in templates(method)), path


def test_every_route_below_v2_is_documented_and_nothing_else() -> None:
    routed = {
        (method, re.sub(r"\[[^]]*\]", "", path) if short else re.sub(r"[\[\]]", "", path))
        for method, path, *_ in ROUTES
        for short in (True, False)
        # There is one repository, without a name.
        if short or "{repository}" not in path
    }
    pages = {("GET", "/v2/config"), ("GET", "/v2/traffic")}
    assert {item for item in OPERATIONS if item[1].startswith("/v2")} == routed | pages


def test_a_page_that_nobody_described_is_an_error() -> None:
    with pytest.raises(KeyError):
        openapi_document({}, version="1", pages=["/v1/new"])


def test_identifiers_are_unique_and_references_lead_somewhere() -> None:
    models = {"a-b": {DEFAULT_SIGNATURE: SIGNATURES["numbers"]}, "a_b": {DEFAULT_SIGNATURE: SIGNATURES["numbers"]}}
    document = openapi_document(models, version="1", pages=PAGES)
    found = [operation["operationId"] for methods in document["paths"].values() for operation in methods.values()]
    assert len(found) == len(set(found)) >= 40
    for place in set(re.findall(r'"#/([^"]+)"', json.dumps(document))):
        target: Any = document
        for part in place.split("/"):
            target = target[part]


SIGNATURES = {
    "numbers": Signature(
        inputs=(
            TensorSpec(name="a", dtype="float32", shape=(-1, 2, 3)),
            TensorSpec(name="b", dtype="int64", shape=(-1,)),
            TensorSpec(name="c", dtype="bool", shape=(-1, -1)),
            TensorSpec(name="d", dtype="string", shape=(-1, 1)),
        ),
        outputs=(TensorSpec(name="y", dtype="float32", shape=(-1,)),),
        compute="numbers",
    ),
    "one": Signature(
        inputs=(TensorSpec(name="x", dtype="uint8", shape=(-1, 4)),),
        outputs=(TensorSpec(name="y", dtype="float32", shape=(-1,)),),
        compute="one",
    ),
    "scalar": Signature(
        inputs=(TensorSpec(name="x", dtype="float64", shape=()),),
        outputs=(TensorSpec(name="y", dtype="float32", shape=()),),
        compute="scalar",
    ),
    "any rank": Signature(
        inputs=(TensorSpec(name="x", dtype="float32", shape=None),),
        outputs=(TensorSpec(name="y", dtype="float32", shape=None),),
        compute="any rank",
    ),
}


@pytest.mark.parametrize("name", SIGNATURES)
def test_examples_fit_their_signatures(name: str) -> None:
    signature = SIGNATURES[name]
    body = _predict.parse_body(json.dumps(example_body(name, signature)).encode(), max_depth=100)
    assert body.signature == name
    inputs = _predict.inputs_of(body, signature)
    complete_inputs(signature, inputs, check_shapes=True, defaults={}, feed_name=str)
    assert body.form == ("row" if signature.batched and signature.inputs[0].shape is not None else "column")


def test_the_example_of_an_image_is_one() -> None:
    signature = Signature(
        inputs=(TensorSpec(name="image_bytes", dtype="string", shape=(-1,)),),
        outputs=(TensorSpec(name="y", dtype="float32", shape=(-1,)),),
        compute="c",
        decode=ImageDecode(input="image_bytes", channels=3),
        preprocess="c.preprocess",
    )
    body = _predict.parse_body(json.dumps(example_body(DEFAULT_SIGNATURE, signature)).encode(), max_depth=100)
    ((data,),) = [array.tolist() for array in _predict.inputs_of(body, signature).values()]
    assert decode_image(data, 3).shape == (1, 1, 3)


def test_examples_of_tf_example_signatures_hold_every_feature() -> None:
    decode = ExampleDecode(
        input="examples",
        features=(
            FeatureSpec(name="age", dtype="float32"),
            FeatureSpec(name="counts", dtype="int64", shape=(2,)),
            FeatureSpec(name="word", dtype="string"),
        ),
    )
    fields: dict[str, Any] = {
        "inputs": (TensorSpec(name="examples", dtype="string", shape=(-1,)),),
        "outputs": (TensorSpec(name="scores", dtype="float32", shape=(-1, 2)),),
        "compute": "c",
        "decode": decode,
    }
    plain, classify = Signature(**fields), Signature(**fields, method=CLASSIFY_METHOD)
    body = _predict.parse_body(json.dumps(example_body("s", plain)).encode(), max_depth=100)
    messages = _predict.inputs_of(body, plain)["examples"].tolist()
    sent = _examples.parse_examples(json.dumps(example_body("s", classify)).encode(), max_depth=100).examples
    for found in (decode_examples(messages, decode), decode_examples(sent, decode)):
        assert {name: array.shape for name, array in found.items()} == {"age": (1,), "counts": (1, 2), "word": (1,)}
    assert request_url("a b", classify) == "/v1/models/a%20b:classify"


def test_a_foreign_classifier_does_not_say_what_its_examples_are() -> None:
    signature = Signature(
        inputs=(TensorSpec(name="inputs", dtype="string", shape=(-1,)),),
        outputs=(TensorSpec(name="scores", dtype="float32", shape=(-1, 2)),),
        compute="c",
        method=CLASSIFY_METHOD,
    )
    assert example_body("s", signature) is None


@pytest.mark.parametrize(("dtype", "shape"), [("complex64", (-1,)), ("uint16", (-1,)), ("float32", (-1, 300, 300))])
def test_what_is_too_long_or_no_json_has_no_example(dtype: str, shape: tuple[int, ...]) -> None:
    signature = Signature(
        inputs=(TensorSpec(name="x", dtype=dtype, shape=shape),),
        outputs=(TensorSpec(name="y", dtype="float32", shape=(-1,)),),
        compute="c",
    )
    assert example_body("s", signature) is None
