"""Arrays read in bulk are those that were sent."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from modelyard.artifact import Signature
from modelyard.errors import ModelyardError
from modelyard.serving.oip._rest_bodies import read_call
from modelyard.serving.rest import _json
from modelyard.serving.rest._numeric import NumericArray

SIGNATURE = Signature(inputs=(), outputs=(), compute="s")
LEAVES = st.one_of(
    st.integers(-(2**70), 2**70),
    st.integers(-300, 300),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from([True, None, "a"]),
)
DATA = st.one_of(
    st.lists(st.integers(-3, 3) | st.floats(-3, 3, width=32), min_size=12, max_size=12),
    st.lists(st.lists(LEAVES, min_size=3, max_size=3), min_size=4, max_size=4),
    st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=4), max_leaves=16),
)


def outcome(body: bytes) -> Any:
    try:
        arrays = read_call(body, None, "m", "", max_depth=100).inputs(SIGNATURE)
    except ModelyardError as exc:
        return type(exc).__name__, exc.message
    return {
        name: (array.dtype.str, array.shape, array.tolist() if array.dtype == object else array.tobytes())
        for name, array in arrays.items()
    }


@settings(max_examples=300, deadline=None)
@given(
    data=DATA,
    other=DATA,
    datatype=st.sampled_from(["FP32", "FP64", "INT8", "INT64", "UINT64", "BOOL", "FP16", "BYTES"]),
    order=st.permutations(["name", "shape", "datatype", "data"]),
    inputs=st.integers(1, 2),
)
def test_arrays_in_bulk_are_read_as_all_others(
    data: Any, other: Any, datatype: str, order: list[str], inputs: int
) -> None:
    items = [
        {"name": f"x{index}", "shape": [4, 3], "datatype": datatype, "data": values}
        for index, values in enumerate([data, other][:inputs])
    ]
    document = {"id": "-" * 80, "inputs": [{key: item[key] for key in order} for item in items]}
    body = json.dumps(document).encode()
    fast = outcome(body)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_json, "cut_array", lambda _: None)
        assert fast == outcome(body)


def test_the_array_of_a_plain_request_is_cut_out() -> None:
    # Else the test before would compare the general path with itself.
    text = json.dumps({"inputs": [{"name": "x", "shape": [40], "datatype": "FP32", "data": [0.5] * 40}]})
    for body in (text, text.replace('"name": "x", ', "").replace("]}]}", '], "name": "x"}]}')):
        assert isinstance(_json.parse_object(body.encode(), max_depth=100)["inputs"][0]["data"], NumericArray)
    assert outcome(text.encode())["x"] == ("<f4", (40,), np.full(40, 0.5, "<f4").tobytes())
