"""The fast path says what the general path says, or leaves the body to it."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from modelyard.artifact import Signature, TensorSpec
from modelyard.errors import ModelyardError
from modelyard.serving.rest import _json, _predict
from modelyard.serving.rest._numeric import cut_array

DTYPES = ("float32", "float64", "int32", "int64", "uint8", "uint64", "bool", "string", "float16")


def signature(dtype: str) -> Signature:
    return Signature(inputs=(TensorSpec(name="x", dtype=dtype, shape=None),), outputs=(), compute="s")


def outcome(body: bytes, dtype: str) -> tuple[str, Any]:
    try:
        array = _predict.inputs_of(_predict.parse_body(body, max_depth=100), signature(dtype))["x"]
    except ModelyardError as exc:
        return type(exc).__name__, exc.message
    return str(array.dtype), (array.shape, array.tobytes() if array.dtype != object else array.tolist())


def both(body: bytes, dtype: str, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Any]:
    fast = outcome(body, dtype)
    with monkeypatch.context() as patch:
        patch.setattr(_json, "cut_array", lambda _: None)
        return fast, outcome(body, dtype)


NUMBERS = st.one_of(
    st.integers(-(2**70), 2**70),
    st.integers(-300, 300),
    st.floats(allow_nan=False, allow_infinity=False, width=32),
    st.sampled_from([True, None, "a"]),
)
TREES = st.recursive(NUMBERS, lambda inner: st.lists(inner, max_size=4), max_leaves=20)
WRAPS = ('{"instances": %s}', '{"inputs": %s}', '{"inputs": {"x": %s}}', '{"instances": [{"x": %s}]}')
#: Long enough for the fast path, and ignored by both.
PADDING = ', "padding": "%s"}' % ("-" * 80)


@settings(max_examples=400, deadline=None)
@given(tree=TREES, wrap=st.sampled_from(WRAPS), dtype=st.sampled_from(DTYPES), indent=st.sampled_from([None, 1]))
def test_both_paths_agree(tree: Any, wrap: str, dtype: str, indent: int | None) -> None:
    body = ((wrap % json.dumps(tree, indent=indent))[:-1] + PADDING).encode()
    with pytest.MonkeyPatch.context() as monkeypatch:
        fast, general = both(body, dtype, monkeypatch)
    assert fast == general


@pytest.mark.parametrize("shape", [(1,), (100,), (3, 4), (1, 28, 28, 1), (2, 3, 4, 5), (1, 1, 1)])
@pytest.mark.parametrize("wrap", WRAPS)
def test_regular_arrays_take_it(shape: tuple[int, ...], wrap: str) -> None:
    values = np.arange(np.prod(shape), dtype=np.float64).reshape(shape) + 1000.5
    body = ((wrap % json.dumps(values.tolist()))[:-1] + PADDING).encode()
    cut = cut_array(body)
    assert cut is not None
    assert cut[1].shape == shape
    array = cut[1].to_array("f")
    assert array is not None
    np.testing.assert_array_equal(array, values)


CORNERS = [
    '{"instances": [[1, 2], [3]]}',
    '{"instances": [[], []]}',
    '{"instances": [[[]]]}',
    '{"instances": [01, 2]}',
    '{"instances": [1 2, 3]}',
    '{"instances": [1,, 2]}',
    '{"instances": [1, 2],}',
    '{"instances": [1, 2]',
    '{"instances": [1e999]}',
    '{"instances": [1, NaN]}',
    '{"instances": [-]}',
    '{"instances": [1.]}',
    '{"instances": [1], "instances": [2]}',
    '{"inputs": [1], "instances": [2]}',
    '{"signature_name": 5, "instances": [1, 2]}',
    '{"signature_name": [1, 2], "instances": 7}',
    '{"other": [1, 2], "instances": 7}',
    '{"inputs": {"x": [1], "y": 2}}',
    '{"inputs": {"y": [1, 2]}}',
    '{"instances": [{"x": [1, 2]}, {"x": [3, 4]}]}',
    '{"instances": [{"x": [1, 2], "z": 1}]}',
    '{"instances": [{"x": [1, 2]}, 5]}',
    '{"instances": [5, {"x": [1, 2]}]}',
    '{"instances": [[1, 2]]} [3]',
    "[1, 2]",
    '{"instances": [[[1], [2]], [[3], [4]]]}',
]


@pytest.mark.parametrize("text", CORNERS)
@pytest.mark.parametrize("dtype", ["float32", "int32", "string", "float16"])
def test_corners_agree(text: str, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    body = (text + " " * 80).encode()
    fast, general = both(body, dtype, monkeypatch)
    assert fast == general


def test_deep_arrays_are_refused_on_both_paths(monkeypatch: pytest.MonkeyPatch) -> None:
    body = ('{"instances": ' + "[" * 120 + "1" + "]" * 120 + "}").encode()
    fast, general = both(body, "float32", monkeypatch)
    assert fast == general
    assert "nested deeper than 100 levels" in fast[1]
