"""Bodies to arrays and arrays to answers: the cases of upstream's json_tensor tests, as data."""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import pytest

from modelyard.artifact import Signature, TensorSpec
from modelyard.errors import InvalidInputError, InvalidRequestError, RequestTooLargeError, UnsupportedError
from modelyard.serving.handlers.rest import _json, _tensors
from modelyard.serving.handlers.rest._predict import inputs_of, parse_body, predict_answer


def signature(**dtypes: str) -> Signature:
    specs = tuple(TensorSpec(name=name, dtype=dtype, shape=None) for name, dtype in dtypes.items())
    return Signature(inputs=specs, outputs=(), compute="serving_default")


def parse(text: str, **dtypes: str) -> dict[str, Any]:
    body = parse_body(text.encode(), max_depth=100)
    return dict(inputs_of(body, signature(**dtypes)))


def check(text: str, expected: Any, **dtypes: str) -> None:
    (array,) = parse(text, **dtypes).values()
    (dtype,) = dtypes.values()
    kind = object if dtype == "string" else np.dtype(dtype)
    wanted = np.array(expected, dtype=kind)
    assert array.dtype == kind
    assert array.shape == wanted.shape
    np.testing.assert_array_equal(array, wanted)


SINGLE: list[tuple[str, str, Any]] = [
    ("int32", '{"instances": [[1,2],[3,4],[5,6]]}', [[1, 2], [3, 4], [5, 6]]),
    ("float32", '{"instances": [1, 2.0, 3, 4, 5.003, 0.007, 0.0]}', [1, 2, 3, 4, 5.003, 0.007, 0]),
    ("float64", '{"instances": [1.0, 2, 3, 4, 0.662, 0, 0.0]}', [1, 2, 3, 4, 0.662, 0, 0]),
    ("int32", '{"signature_name": "predict_images", "instances": [[1,2]]}', [[1, 2]]),
    ("int32", '{"instances": [[1,2],[3,4],[5,6]]}X', [[1, 2], [3, 4], [5, 6]]),
    ("string", '{"instances": [{"b64": "aGVsbG8="}, {"b64": "d29ybGQ="}]}', [b"hello", b"world"]),
    ("string", '{"instances": [[{"b64": "aGVsbG8="}], [{"b64": "d29ybGQ="}]]}', [[b"hello"], [b"world"]]),
    ("string", '{"instances": [{"x": [[{"b64": "aGVsbG8="}], [{"b64": "d29ybGQ="}]]}]}', [[[b"hello"], [b"world"]]]),
    ("int32", '{"inputs": {"x": [[[1,2],[3,4],[5,6]]]}}', [[[1, 2], [3, 4], [5, 6]]]),
    ("int32", '{"inputs": [[[1,2],[3,4],[5,6]]]}', [[[1, 2], [3, 4], [5, 6]]]),
    ("string", '{"inputs": {"b64": "aGVsbG8="}}', b"hello"),
    # Upstream skips white space in base64, as base64(1) and MIME encoders write it.
    ("string", '{"instances": [{"b64": "aGVs\\nbG8=\\n"}, {"b64": " d29y\\r\\nbGQ\\t"}]}', [b"hello", b"world"]),
    ("float32", '{"inputs": 2.5}', 2.5),
    ("float32", '{"inputs": []}', []),
    ("bool", '{"instances": [true, false]}', [True, False]),
    ("int64", f'{{"instances": [{2**63 - 1}, {-(2**63)}]}}', [2**63 - 1, -(2**63)]),
    ("uint64", f'{{"instances": [{2**64 - 1}, 0]}}', [2**64 - 1, 0]),
    ("uint32", f'{{"instances": [{2**32 - 1}]}}', [2**32 - 1]),
    # Integers that fit int32 are accepted for narrower types, and wrap as upstream's do.
    ("uint8", '{"instances": [255, 7]}', [255, 7]),
    ("string", '{"instances": ["\\u0000a", "\u00e9"]}', [b"\x00a", "\u00e9".encode()]),
]


@pytest.mark.parametrize(("dtype", "text", "expected"), SINGLE)
def test_one_tensor(dtype: str, text: str, expected: Any) -> None:
    check(text, expected, x=dtype)


def test_narrow_integers_wrap() -> None:
    assert parse('{"instances": [300, -1]}', x="uint8")["x"].tolist() == [44, 255]
    assert parse('{"instances": [200]}', x="int8")["x"].tolist() == [-56]


def test_floats_beyond_single_precision_saturate() -> None:
    values = parse('{"instances": [1e39, -1e39, 1e-60, NaN, Infinity, -Infinity, Inf]}', x="float32")["x"]
    assert values.dtype == np.float32
    assert values[[0, 1, 2, 4, 5, 6]].tolist() == [np.inf, -np.inf, 0.0, np.inf, -np.inf, np.inf]
    assert np.isnan(values[3])


def test_several_tensors_in_rows() -> None:
    text = """{"instances": [
      {"i": [[1,2],[3,4]], "s": ["foo", "bar"], "f": [1.0, NaN], "d": [NaN]},
      {"i": [[7,8],[9,0]], "s": ["baz", "bat"], "f": [2.0, Infinity], "d": [2.0]}]}"""
    arrays = parse(text, i="int32", s="string", f="float32", d="float64")
    assert arrays["i"].tolist() == [[[1, 2], [3, 4]], [[7, 8], [9, 0]]]
    assert arrays["s"].tolist() == [[b"foo", b"bar"], [b"baz", b"bat"]]
    np.testing.assert_array_equal(arrays["f"], np.array([[1, np.nan], [2, np.inf]], np.float32))
    np.testing.assert_array_equal(arrays["d"], np.array([[np.nan], [2]]))


def test_several_tensors_in_columns() -> None:
    text = '{"inputs": {"i": [[[1,2],[3,4]]], "s": ["foo", "bar"], "b": {"b64": "aGVsbG8="}, "unknown": 1}}'
    arrays = parse(text, i="int32", s="string", b="string")
    assert arrays["i"].shape == (1, 2, 2)
    assert arrays["s"].tolist() == [b"foo", b"bar"]
    assert (arrays["b"].shape, arrays["b"].item()) == ((), b"hello")


REFUSED: list[tuple[dict[str, str], str, str]] = [
    ({"x": "int32"}, "", "document is empty"),
    ({"x": "int32"}, "instances = [1, 2]", "JSON Parse error: Invalid value"),
    ({"x": "int32"}, '{"signature_name": 5, "instances": [[1,2]]}', "must be a string value"),
    ({"x": "int32"}, '{"instances": [[1,2]], "inputs": [[1,2]]}', "Not formatted correctly"),
    ({"x": "int32"}, '{"instances": [[1,2],[3,4],[5,6,7]]}', "Expecting tensor size: 2 but got: 3"),
    ({"x": "int32"}, '{"instances": [[1,2],[3,4],[[5,6]]]}', "Expecting shape [2] but got: [1,2]"),
    ({"x": "int32"}, '{"instances": [1, [1]]}', "Expecting shape [] but got: [1]"),
    ({"x": "int32"}, '{"instances": [[1,2],["a","b"]]}', "not of expected type: int32"),
    ({"x": "int32"}, '{"instances": [1.0]}', "not of expected type: int32"),
    ({"x": "int32"}, f'{{"instances": [{2**31}]}}', "not of expected type: int32"),
    ({"x": "uint32"}, '{"instances": [-1]}', "not of expected type: uint32"),
    ({"x": "uint64"}, '{"instances": [-1]}', "not of expected type: uint64"),
    ({"x": "uint64"}, f'{{"instances": [{2**64}]}}', "not of expected type: uint64"),
    ({"x": "int64"}, f'{{"instances": [{2**63}]}}', "not of expected type: int64"),
    ({"x": "bool"}, '{"instances": [1]}', "Type: Number is not of expected type: bool"),
    ({"x": "string"}, '{"instances": [1]}', "not of expected type: string"),
    ({"x": "float32"}, '{"instances": [null]}', "JSON Value: null Type: Null is not of expected type: float"),
    ({"x": "float32"}, '{"instances": [1, true]}', "Type: True is not of expected type: float"),
    ({"x": "float32"}, '{"inputs": {"x": {"b64": "aGVsbG8="}}}', "Type: Object is not of expected type: float"),
    ({"x": "string"}, '{"inputs": {"x": {"a": "b"}}}', "not formatted correctly for base64 data"),
    ({"x": "string"}, '{"instances": [{"b64": "a"}]}', "Unable to base64 decode"),
    ({"x": "string"}, '{"instances": [{"b64": "aGVsbG8=\\u00a0"}]}', "Unable to base64 decode"),
    (
        {"i": "int32", "s": "string"},
        '{"instances": [{"i": [[1,2]], "s": ["a"]}, {"i": [[[7,8]]], "s": ["b"]}]}',
        "Expecting shape",
    ),
    (
        {"i": "int32", "s": "string"},
        '{"instances": [{"i": [1,2], "s": ["a"]}, {"i": [1], "s": ["b"]}]}',
        "Expecting tensor size",
    ),
    (
        {"i": "int32", "s": "string"},
        '{"instances": [{"i": 1, "s": "a"}, [1]]}',
        "Expecting object but got list at item 1",
    ),
    ({"s": "string"}, '{"instances": [["a","b"], {"s": ["a","b"]}]}', "Expecting value/list but got object at item 1"),
    ({"i": "int32", "s": "string"}, '{"instances": [1]}', "instances is a plain list, but expecting list of objects"),
    ({"i": "int32", "s": "string"}, '{"inputs": [1]}', "inputs is a plain value/list, but expecting an object"),
    ({"i": "int32", "s": "string"}, '{"inputs": {"i": 1}}', "Missing named input: s in 'inputs' object."),
    ({"i": "int32"}, '{"instances": [{"i": 1, "j": 2}]}', "does not have named input: j"),
    ({"i": "int32", "s": "string"}, '{"instances": [{"i": 1}]}', "keys must be equal to: i,s"),
    ({"x": "float32"}, '{"inputs": [[1],2]}', "found at incorrect level: 2 in the JSON DOM. Expected at level: 2"),
    ({"x": "float32"}, '{"inputs": [1,[2]]}', "Encountered list at unexpected level: 1 expected < 1"),
    (
        {"x": "float32"},
        '{"inputs": [[1,2],[3]]}',
        "Encountered list at unexpected size: 1 at level: 1 expected size: 2",
    ),
]


@pytest.mark.parametrize(("dtypes", "text", "fragment"), REFUSED)
def test_refused(dtypes: dict[str, str], text: str, fragment: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        parse(text, **dtypes)
    assert fragment in caught.value.message


def test_a_literal_beyond_double_range_is_a_parse_error() -> None:
    with pytest.raises(InvalidRequestError, match="JSON Parse error"):
        parse('{"instances": [1e999]}', x="float32")


def test_strings_are_carried_byte_for_byte() -> None:
    text = rb'{"instances": ["\ud83d\ude00", "\\ud800", "' + b'\xff\xed\xa0\x80"]}'
    (array,) = inputs_of(parse_body(text, max_depth=100), signature(x="string")).values()
    assert array.tolist() == ["\U0001f600".encode(), rb"\ud800", b"\xff\xed\xa0\x80"]


@pytest.mark.parametrize("escape", [r"\ud800", r"\uDFFF", r"\ud800x", r"\udc00\ud800", r"\ud800\ud800", r"\\\ud800"])
def test_half_a_surrogate_pair_is_a_parse_error(escape: str) -> None:
    for body in (f'{{"instances": ["{escape}"]}}', f'{{"instances": [1], "{escape}": 1}}'):
        with pytest.raises(InvalidRequestError, match="The surrogate pair in string is invalid"):
            parse(body, x="string")
    # What follows the document is not read.
    assert parse(f'{{"instances": ["a"]}} {escape}', x="string")["x"].tolist() == [b"a"]


def test_integers_of_many_digits_are_floats_up_to_their_range() -> None:
    assert parse(f'{{"instances": [1{"0" * 308}]}}', x="float64")["x"].tolist() == [1e308]
    for digits in (309, 5000):
        with pytest.raises(InvalidRequestError, match="Number too big to be stored in double"):
            parse(f'{{"instances": [1{"0" * digits}]}}', x="float64")


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "uint16", "complex64"])
def test_dtypes_that_json_lacks(dtype: str) -> None:
    with pytest.raises(UnsupportedError, match="Conversion of JSON Value: 1 to type: "):
        parse('{"inputs": [1]}', x=dtype)
    # Row form wraps every error of an element, and so hides the code: upstream's wart.
    with pytest.raises(
        InvalidInputError, match="Failed to process element: 0 of 'instances' list. Error: UNIMPLEMENTED"
    ):
        parse('{"instances": [1]}', x=dtype)


def test_errors_name_the_element_and_the_key() -> None:
    with pytest.raises(
        InvalidInputError, match="Failed to process element: 1 key: i of 'instances' list. Error: INVALID_"
    ):
        parse('{"instances": [{"i": 1}, {"i": "a"}]}', i="int32")


def test_quoted_json_is_cut() -> None:
    with pytest.raises(InvalidRequestError) as caught:
        parse(json.dumps({"instances": ["x" * 10_000]}), x="float32")
    assert len(caught.value.message) < 600


def answer(form: Any, **outputs: Any) -> Any:
    return json.loads(predict_answer(outputs, form))


INTS = np.array([[[1, 2], [3, 4], [5, 6]], [[7, 8], [9, 0], [1, 2]]], np.int32)


def test_answers_with_one_output() -> None:
    assert answer("row", y=INTS) == {"predictions": INTS.tolist()}
    assert answer("column", y=INTS) == {"outputs": INTS.tolist()}
    assert answer("row", y=np.arange(1, 6)) == {"predictions": [1, 2, 3, 4, 5]}
    assert answer("column", y=np.array(3, np.int64)) == {"outputs": 3}
    words = np.array([[b"hello", b"world"], [b"tf", b"serving"]], object)
    encoded = [[{"b64": "aGVsbG8="}, {"b64": "d29ybGQ="}], [{"b64": "dGY="}, {"b64": "c2VydmluZw=="}]]
    assert answer("row", text_bytes=words) == {"predictions": encoded}
    assert answer("row", text=words) == {"predictions": [["hello", "world"], ["tf", "serving"]]}
    assert answer("row", flag=np.array([True, False])) == {"predictions": [True, False]}


def test_six_digits_where_they_suffice() -> None:
    values = np.array([[9000000, 999999, 0.5], [0.0003, 0.00003, 555557.5]], np.float32)
    rows = predict_answer({"y": values}, "row").split("[", 1)[1]
    assert rows.split("\n")[0] == "[9e+06, 999999.0, 0.5], [0.0003, 3e-05, 555557.5]"


def test_values_that_json_lacks() -> None:
    text = predict_answer({"y": np.array([np.nan, np.inf, 3, -np.inf], np.float32)}, "row")
    assert text.split("[")[1].split("\n")[0] == "NaN, Infinity, 3.0, -Infinity"


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_every_float_reads_back_exactly(kind: type[np.floating[Any]]) -> None:
    random = np.random.default_rng(0)
    values = (random.standard_normal(5000) * 10.0 ** random.integers(-30, 30, 5000)).astype(kind)
    read = np.array(json.loads(predict_answer({"y": values}, "row"))["predictions"]).astype(kind)
    np.testing.assert_array_equal(read, values)


def test_answers_with_several_outputs() -> None:
    outputs = {
        "d": np.array([8.0, 9.0]),
        "f": np.array([[1.0], [2.0]], np.float32),
        "i": INTS,
        "s": np.array([[b"foo"], [b"bar"]], object),
    }
    rows = [
        {"d": 8.0, "f": [1.0], "i": INTS[0].tolist(), "s": ["foo"]},
        {"d": 9.0, "f": [2.0], "i": INTS[1].tolist(), "s": ["bar"]},
    ]
    assert answer("row", **outputs) == {"predictions": rows}
    columns = {"d": [8.0, 9.0], "f": [[1.0], [2.0]], "i": INTS.tolist(), "s": [["foo"], ["bar"]]}
    assert answer("column", **outputs) == {"outputs": columns}


def test_empty_batches() -> None:
    assert answer("row", y=np.zeros((0, 2), np.int32)) == {"predictions": []}
    assert answer("row", y=np.zeros((0, 3, 4), np.float32), s=np.zeros((0, 1), object)) == {"predictions": []}
    assert answer("column", y=np.zeros((0, 2), np.int32)) == {"outputs": []}
    assert answer("column", y=np.zeros((2, 0), np.int32)) == {"outputs": [[], []]}
    assert answer("row", y=np.zeros((2, 0), np.int32)) == {"predictions": [[], []]}


ANSWERS_REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"y": np.array(1, np.int32)}, "has no shape information"),
    ({"y": np.zeros((2, 3), np.int32), "z": np.zeros((1, 3), np.int32)}, "has inconsistent batch size: 1 expecting: 2"),
    ({"y": np.zeros((0, 2), np.int32), "z": np.zeros((1, 2), np.int32)}, "has inconsistent batch size: 1 expecting: 0"),
    ({"y": np.zeros(1, np.complex64)}, "tensor type: complex64"),
    ({"y": np.zeros(1, np.float16)}, "tensor type: half"),
]


@pytest.mark.parametrize(("outputs", "fragment"), ANSWERS_REFUSED)
def test_answers_refused(outputs: dict[str, Any], fragment: str) -> None:
    with pytest.raises(InvalidRequestError, match=fragment):
        predict_answer(outputs, "row")


def test_strings_are_left_out_slice_by_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_json, "_SLICE", 3)
    deep, rng = "[" * 101, random.Random(25)
    for _ in range(300):
        text = "".join(rng.choice('"\\[],a') for _ in range(rng.randrange(12)))
        quoted = json.dumps(text)
        assert parse(f'{{"k": {json.dumps(text + deep)}, "instances": [{quoted}]}}', x="string")["x"] == [text.encode()]
        with pytest.raises(InvalidRequestError, match="nested deeper than 100 levels"):
            parse(f'{{"k": {quoted}, "instances": {deep}', x="string")


def test_values_that_no_function_reads_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_json, "_MAX_PLAIN", 8)
    # The two keys are strings, and instances is a list.
    check('{"signature_name": "", "instances": [' + ",".join(["1"] * 20) + "]}", [1] * 20, x="int32")
    check('{"instances": ["a", "b", "c", "d", "e", "f"]}', [each.encode() for each in "abcdef"], x="string")
    for each in ('""', "null", "true", "false", "[]"):
        with pytest.raises(RequestTooLargeError, match="more than 8 strings, lists, nulls and booleans"):
            parse('{"instances": [' + ",".join([each] * 9) + "]}", x="string")


def test_long_lists_of_numbers_are_read_slice_by_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_tensors, "_SLICE", 4)
    for dtype, values in (("uint64", [2**64 - 1, 0] * 5), ("float64", [1, 2.5, -1e300] * 3), ("int8", [300] * 9)):
        wrapped = np.array(values, np.int64).astype(np.int8) if dtype == "int8" else values
        check(json.dumps({"instances": values}), wrapped, x=dtype)
    with pytest.raises(InvalidInputError, match=r"element: 8 of 'instances' list.*JSON Value: -1 Type: Number"):
        parse(json.dumps({"instances": [1] * 8 + [-1]}), x="uint64")


def test_long_strings_are_quoted_in_part() -> None:
    with pytest.raises(InvalidInputError, match=r'JSON Value: "a{255}\.\.\. Type'):
        parse(json.dumps({"instances": ["a" * 1000]}), x="int32")
    assert _json.quote({"a": [1, 1e400, None, True, "\u00e9"]}) == '{"a": [1, Infinity, null, true, "\\u00e9"]}'
