"""Answers that are cut say what protobuf says of them, and others are left to it."""

from __future__ import annotations

import random

import numpy as np
import pytest

from modelyard.clients.protocols import _fast_predict
from modelyard.clients.protocols._answer_forms import Form
from modelyard.clients.protocols._fast_predict import response_of
from modelyard.wire import array_to_tensor, serving_pb2, tensor_to_array, varint

SHAPES: list[tuple[int, ...]] = [(), (1,), (7,), (2, 3), (1, 1, 4), (300,)]


@pytest.fixture(autouse=True)
def forms() -> dict[int, Form | None]:
    _fast_predict._forms.clear()
    return _fast_predict._forms


def answer(outputs: dict[str, np.ndarray], *, as_content: bool = False, version: int | None = 3) -> bytes:
    response = serving_pb2.PredictResponse()
    for name, array in outputs.items():
        response.outputs[name].CopyFrom(array_to_tensor(array, as_content=as_content))
    response.model_spec.name = "m"
    response.model_spec.signature_name = "s"
    if version is not None:
        response.model_spec.version.value = version
    return response.SerializeToString()


def check(data: bytes) -> None:
    """That both ways agree: the first time, when a form may be learned, and when it is used."""
    official = serving_pb2.PredictResponse.FromString(data)
    for _ in range(3):
        fast = response_of(data)
        assert fast is not None
        outputs, echo = fast
        assert outputs.keys() == official.outputs.keys()
        for name, tensor in official.outputs.items():
            expected = tensor_to_array(tensor)
            np.testing.assert_array_equal(outputs[name], expected)
            assert (outputs[name].dtype, outputs[name].shape) == (expected.dtype, expected.shape)
            assert outputs[name].flags.aligned
            assert outputs[name].dtype.kind != "f" or not outputs[name].flags.writeable
        spec = official.model_spec
        assert echo == (spec.name, spec.version.value if spec.HasField("version") else None, spec.signature_name)


def test_generated_answers(forms: dict[int, Form | None]) -> None:
    rng, choose = np.random.default_rng(0), random.Random(0)
    for _ in range(500):
        names = choose.sample(["y", "é", "", "scores", "a" * 200], choose.randint(1, 3))
        outputs = {
            name: rng.standard_normal(choose.choice(SHAPES)).astype(choose.choice([np.float32, np.float64]))
            for name in names
        }
        check(answer(outputs, as_content=choose.random() < 0.5, version=choose.choice([None, 0, 1, 1 << 40])))
    assert any(forms.values())


def test_only_values_may_differ(forms: dict[int, Form | None]) -> None:
    first: dict[str, np.ndarray] = {"y": np.arange(3, dtype=np.float32), "z": np.full((2, 2), np.nan)}
    data = answer(first)
    check(data)
    form = forms[len(data)]
    assert form is not None
    other: dict[str, np.ndarray] = {"y": np.array([9, -0.0, np.inf], np.float32), "z": np.zeros((2, 2))}
    cut = form.cut(answer(other))
    assert cut is not None
    for name, array in other.items():
        np.testing.assert_array_equal(cut[name], array)
    # Answers as long as these, with another name, version, shape or place of a tensor.
    assert form.cut(answer({"y": first["y"], "x": first["z"]})) is None
    assert form.cut(answer(first, version=4)) is None
    assert form.cut(answer({"y": first["y"], "z": np.zeros((4, 1))})) is None
    check(answer({"y": first["y"], "z": np.zeros((1, 4))}))


def test_every_other_byte_counts(forms: dict[int, Form | None]) -> None:
    data = answer({"y": np.arange(3, dtype=np.float32)})
    check(data)
    form = forms[len(data)]
    assert form is not None
    ((_, _, _, start, stop),) = form.outputs
    for at in range(len(data)):
        changed = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
        assert (form.cut(changed) is not None) == (start <= at < stop)


@pytest.mark.parametrize("array", [np.array([True, False]), np.array([1, 2]), np.array([b"a"], object)])
def test_values_that_are_not_any_bytes_are_parsed(forms: dict[int, Form | None], array: np.ndarray) -> None:
    check(answer({"y": array}))
    check(answer({"x": np.zeros(3, np.float32), "y": array}))
    assert not any(forms.values())


def field(tag: int, data: bytes) -> bytes:
    return bytes([tag]) + varint(len(data)) + data


def entry(*fields: bytes) -> bytes:
    return field(0x0A, b"".join(fields))


HEAD = b"\x08\x01" + b"\x12\x04\x12\x02\x08\x02"
VALUES = field(0x2A, np.array([1, 2], "<f4").tobytes())
NAME = field(0x0A, b"y")


@pytest.mark.parametrize(
    ("data", "known"),
    [
        (entry(NAME, field(0x12, HEAD + VALUES)), True),
        (entry(field(0x12, HEAD + VALUES), NAME), True),
        (entry(field(0x0A, b"x"), NAME, field(0x12, VALUES + HEAD)), True),
        (entry(NAME, field(0x12, HEAD), field(0x12, VALUES)), True),
        (entry(NAME, field(0x12, HEAD + VALUES + b"\x18\x00")), True),
        (entry(NAME, field(0x12, HEAD + VALUES)) + b"\x78\x01", True),
        (entry(NAME, field(0x12, HEAD + VALUES)) * 2, False),
        (entry(NAME, field(0x12, HEAD + VALUES + field(0x32, bytes(8)))), False),
        (entry(NAME, field(0x12, HEAD + VALUES)) + b"\x7d" + bytes(4), False),
        (entry(NAME, field(0x12, HEAD + VALUES)) + b"\xfa\x01\x01a", False),
        (entry(NAME, field(0x12, HEAD + VALUES)) + b"\x7b\x7c", False),
    ],
    ids=[
        "usual", "the name last", "two names", "a tensor in two parts", "an unknown number in the tensor",
        "an unknown number", "an entry twice", "values of two kinds", "an unknown fixed field",
        "an unknown field with a large number", "an unknown group",
    ],
)  # fmt: skip
def test_odd_forms(forms: dict[int, Form | None], data: bytes, known: bool) -> None:
    check(data)
    assert any(forms.values()) == known


def test_forms_do_not_pile_up(forms: dict[int, Form | None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_fast_predict, "_MAX_FORMS", 3)
    for count in range(1, 20):
        check(answer({"y": np.zeros(count, np.float32)}))
        assert len(forms) <= 3


def test_numbers_that_are_none() -> None:
    from modelyard.wire import read_varint

    for number in (0, 127, 128, (1 << 64) - 1):
        assert read_varint(b"\0" + varint(number), 1) == (number, 1 + len(varint(number)))
    with pytest.raises(IndexError):
        read_varint(b"\x80", 0)
    with pytest.raises(ValueError, match="64 bits"):
        read_varint(b"\xff" * 10 + b"\1", 0)
