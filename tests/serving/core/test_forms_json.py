"""The core's reader and writer of REST v1 say what the general path says, byte for byte."""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from modelyard.artifact import Signature, TensorSpec
from modelyard.errors import InvalidInputError
from modelyard.serving.handlers.rest import float_texts
from modelyard.serving.handlers.rest._predict import Form, inputs_of, parse_body, predict_answer
from modelyard.wire import dtype_by_name
from tests.support.forms import (
    DTYPES,
    OUTPUT_DTYPES,
    Arrays,
    cases,
    check_read,
    described,
    mutated,
    native,
    number_texts,
    outputs_of,
    some_array,
    some_shape,
    some_signature,
    with_other_numbers,
)

FORMS = native()
WORDS = [
    b"[", b"]", b"{", b"}", b",", b":", b'"', b" ", b"\n", b"-", b".", b"e", b"E+", b"0", b"00", b"-0", b"1.", b".5",
    b"1e", b"1e400", b"1e-400", b"123456789012345678901234567890", b"9007199254740993", b"18446744073709551616",
    b"2147483648", b"-2147483649", b"NaN", b"Infinity", b"-Infinity", b"Inf", b"true", b"false", b"null", b'"a"',
    b'"signature_name":"other",', b'"instances":[[1,2]],', b'"inputs":', b'"x":', b'{"b64":"aGk="}', b"\\u0078", b"[]",
    b"\xef\xbb\xbf", b"\xff", b"\x00", b"0.1234567", b"0.12345678901234568", b"4.9e-324", b"-0.0",
]  # fmt: skip


def check(body: bytes, signature: Signature, *, extensions: bool = False, max_depth: int = 100) -> bool:
    read = FORMS.read_json(body, described(signature), extensions=extensions, max_depth=max_depth)
    if read is None:
        return False
    form, name, tensors = read
    parsed = parse_body(body, max_depth=max_depth)
    assert (form, name) == (parsed.form, parsed.signature)
    return check_read(tensors, lambda: inputs_of(parsed, signature, extensions=extensions), signature)


def some_request(rng: random.Random, random_values: np.random.Generator) -> tuple[bytes, Signature]:
    """A request as clients send it, and the signature that it fits."""
    names = rng.sample(("x", "y", "images", "größe"), rng.choice((1, 1, 1, 2, 3)))
    dtypes = {name: rng.choice([dtype for dtype in DTYPES if dtype not in ("float16", "bfloat16")]) for name in names}
    rows = rng.randint(1, 3)
    row_form = rng.random() < 0.7
    arrays: Arrays = {}
    for name, dtype in dtypes.items():
        shape = (rows, *some_shape(rng, ranks=(0, 3))) if row_form else some_shape(rng, ranks=(0, 4))
        if rng.random() < 0.05:
            shape = (rows, 100)
        array = some_array(random_values, dtype, shape)
        arrays[name] = np.where(np.isfinite(array), array, array.dtype.type(0)) if array.dtype.kind == "f" else array
    texts = {name: number_texts(rng, array) for name, array in arrays.items()}
    plain = len(names) == 1 and rng.random() < 0.6
    if row_form and plain:
        member = f'"instances":{texts[names[0]]}'
    elif row_form:
        each = [
            {name: number_texts(rng, arrays[name][row]) for name in rng.sample(names, len(names))}
            for row in range(rows)
        ]
        member = '"instances": [' + ",".join(_object(row) for row in each) + "]"
    else:
        member = f'"inputs":{texts[names[0]] if plain else _object(texts)}'
    members = [member]
    if rng.random() < 0.3:
        members.insert(rng.randint(0, 1), '"signature_name": "serving_default"')
    body = "{" + rng.choice((",", ", ", ",\n  ")).join(members) + "}"
    return body.encode(), some_signature(rng, arrays, dtypes)


def _object(texts: dict[str, str]) -> str:
    return "{" + ", ".join(f"{json.dumps(name, ensure_ascii=False)}: {text}" for name, text in texts.items()) + "}"


@pytest.mark.parametrize("extensions", [False, True])
def test_requests_of_the_usual_form_are_read(extensions: bool) -> None:
    read = total = 0
    for rng, random_values in cases(1):
        body, signature = some_request(rng, random_values)
        read += check(body, signature, extensions=extensions)
        total += extensions or not any(spec.dtype == "uint16" for spec in signature.inputs)
    # Some values are out of upstream's ranges.
    assert read > 0.7 * total


def test_mutated_requests_are_read_as_by_the_general_path_or_not_at_all() -> None:
    read = 0
    for rng, random_values in cases(2):
        body, signature = some_request(rng, random_values)
        read += check(mutated(rng, body, WORDS), signature, extensions=rng.random() < 0.5)
    assert read


def test_other_numbers_are_read_as_by_the_general_path_or_not_at_all() -> None:
    read = total = 0
    for rng, random_values in cases(7):
        body, signature = some_request(rng, random_values)
        read += check(with_other_numbers(rng, body), signature, extensions=rng.random() < 0.5)
        total += 1
    # The rest is out of range or of another kind, as here and there on the general path.
    assert read > 0.3 * total


@pytest.mark.parametrize("max_depth", range(2, 8))
def test_nesting_is_limited_as_on_the_general_path(max_depth: int) -> None:
    for rank in range(1, 5):
        array = "[" * rank + "1,2" + "]" * rank
        signature = _signature(shape=None)
        for body in (f'{{"inputs":{array}}}', f'{{"inputs":{{"x":{array}}}}}', f'{{"instances":[{{"x":{array}}}]}}'):
            check(body.encode(), signature, max_depth=max_depth)


def _signature(dtype: str = "float32", shape: tuple[int, ...] | None = (-1, 2)) -> Signature:
    return Signature(inputs=(TensorSpec(name="x", dtype=dtype, shape=shape),), outputs=(), compute="x")


@pytest.mark.parametrize(
    "body",
    [
        '{"instances":[[1,2]]}',
        '{"instances": [[1.0, 2.5], [-0.0, -0]]}',
        ' {\n "signature_name": "other",\n "instances": [\n  [1e-3, 2E+5],\n  [0.1234567, 0.1234567890123456]\n ]\n}\n',
        '{"instances":[{"x":[1,2]}]}',
        '{"instances":[{"x":[1,2]},{"x":[3,4]}],"signature_name":""}',
        '{"inputs":[[1,2]]}',
        '{"inputs":{"x":[[1,2]]}}',
        '{"inputs":{"x":[[1e-400,123456789012345678901234567890]]}}',
        '{"inputs":[[3.5e38,1.00000017881393432617187499]]}',
    ],
)  # fmt: skip
def test_fixed_usual_bodies_are_not_declined(body: str) -> None:
    assert check(body.encode(), _signature())


@pytest.mark.parametrize("body", ['{"instances":[1,2]}', '{"inputs":[1,2]}', '{"instances":[{"x":1},{"x":2}]}'])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int8", "int32", "int64", "uint8", "uint32", "uint64"])
def test_rows_may_be_single_values(body: str, dtype: str) -> None:
    assert check(body.encode(), _signature(dtype, (-1,)))


def test_pictures_in_every_precision_are_not_declined() -> None:
    values = np.random.default_rng(5).random((1, 784))
    for rows in (values.round(7).tolist(), values.astype(np.float32).tolist(), values.tolist()):
        assert check(json.dumps({"instances": rows}).encode(), _signature(shape=(-1, 784)))
    assert check(b'{"instances":[[true,false]]}', _signature("bool"))


def general_answer(outputs: Arrays, form: Form, **options: bool) -> bytes | None:
    try:
        return predict_answer(outputs, form, **options).encode()
    except InvalidInputError:
        return None


def some_outputs(rng: random.Random, random_values: np.random.Generator) -> tuple[Arrays, dict[str, str]]:
    names = rng.sample(("y", "scores", "größe", 'a"b%s', "\U0001f600"), rng.choice((1, 1, 2, 3)))
    dtypes = {name: rng.choice((*OUTPUT_DTYPES, "float32", "float32", "float64")) for name in names}
    rows = rng.randint(1, 4)
    arrays = {}
    for name, dtype in dtypes.items():
        shape: tuple[int, ...] = (rows, *some_shape(rng, least=rng.choice((0, 1, 1, 1)), ranks=(0, 3), largest=6))
        if rng.random() < 0.03:
            shape = some_shape(rng, ranks=(0, 2))
        arrays[name] = some_array(random_values, dtype, shape)
    return arrays, dtypes


@pytest.mark.parametrize("form", ["row", "column"])
def test_answers_are_written_byte_for_byte(form: Form) -> None:
    written = 0
    for rng, random_values in cases(3):
        arrays, dtypes = some_outputs(rng, random_values)
        options = {"strict": rng.random() < 0.3, "extensions": rng.random() < 0.5}
        outputs = outputs_of(arrays, dtypes)
        expected = general_answer(arrays, form, **options)
        assert FORMS.write_json(form, outputs, rows=None, **options) == expected
        written += expected is not None
        sizes = {array.shape[:1] for array in arrays.values()}
        if len(sizes) == 1 and sizes != {()}:
            ((size,),) = sizes
            start = rng.randint(0, size - 1)
            end = rng.randint(start + 1, size)
            part = {name: array[start:end] for name, array in arrays.items()}
            expected = general_answer(part, form, **options)
            assert FORMS.write_json(form, outputs, rows=(start, end), **options) == expected
    assert written


@pytest.mark.parametrize(("name", "value"), [("y", b"\xff"), ("y", b"\xed\xa0\x80"), ("image_bytes", b"x")])
def test_bytes_that_are_no_text_are_declined(name: str, value: bytes) -> None:
    options = {"strict": False, "extensions": False}
    outputs = outputs_of({name: np.array([b"text", value], object)}, {name: "string"})
    assert FORMS.write_json("column", outputs, rows=None, **options) is None
    written = FORMS.write_json("column", outputs, rows=(0, 1), **options)
    assert (written is None) == (name == "image_bytes")


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_floats_have_the_same_texts(dtype: str) -> None:
    kind = dtype_by_name(dtype).numpy
    assert kind is not None
    for seed in range(8):
        values = _every_half(kind) if kind.itemsize == 2 else some_floats(seed, kind)
        wide: npt.NDArray[Any] = values if kind.itemsize > 2 else values.astype(np.float32)
        # One by one, in Python's plainest way.
        expected = [text for start in range(0, wide.size, 128) for text in float_texts(wide[start : start + 128])]
        outputs = outputs_of({"y": values}, {"y": dtype})
        answer = FORMS.write_json("column", outputs, rows=None, strict=False, extensions=True)
        assert answer.decode() == '{\n    "outputs": [' + ", ".join(expected) + "]\n}"
        if kind.itemsize == 2:
            break


def some_floats(seed: int, kind: np.dtype[Any]) -> npt.NDArray[Any]:
    rng = np.random.default_rng(seed)
    with np.errstate(all="ignore"):
        sets = [
            np.frombuffer(rng.bytes(3000 * kind.itemsize), kind),
            (10.0 ** rng.uniform(-46, 39, 1000)).astype(kind),
            rng.random(1000).astype(kind),
            np.round(rng.normal(size=1000) * 1000, int(rng.integers(0, 7))).astype(kind),
            np.nextafter(np.round(rng.random(1000), 6).astype(kind), kind.type(2)),
            (10.0 ** rng.integers(-40, 38, 200)).astype(kind),
            (rng.integers(99_990, 100_010, 500) * 10.0 ** rng.integers(-10, 4, 500)).astype(kind),
            (rng.integers(1, 1 << 24, 500) / 2.0 ** rng.integers(0, 30, 500)).astype(kind),
        ]
    return np.concatenate(sets)


def _every_half(kind: np.dtype[Any]) -> npt.NDArray[Any]:
    return np.arange(1 << 16, dtype=np.uint16).view(kind)
