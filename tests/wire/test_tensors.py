"""Arrays and TensorProto, both ways, against TensorFlow's own codec."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from modelyard.errors import InvalidInputError, UnsupportedError
from modelyard.wire import (
    array_to_tensor,
    as_wire_array,
    dtype_by_name,
    dtype_names,
    shape_from_proto,
    shape_to_proto,
    tensor_to_array,
    tensorflow_pb2,
)

NUMERIC = sorted(set(dtype_names()) - {"string"})
_SHAPES = hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)


@st.composite
def numeric_arrays(draw: st.DrawFn, name: str) -> np.ndarray:
    kind = dtype_by_name(name).numpy
    assert kind is not None
    if name == "bfloat16":
        bits = draw(hnp.arrays(np.uint16, _SHAPES))
        return bits.view(ml_dtypes.bfloat16)
    return draw(hnp.arrays(kind, _SHAPES))


@st.composite
def string_arrays(draw: st.DrawFn) -> np.ndarray:
    shape = draw(_SHAPES)
    count = int(np.prod(shape))
    values = draw(st.lists(st.binary(max_size=200), min_size=count, max_size=count))
    result = np.empty(count, dtype=object)
    result[:] = values
    return result.reshape(shape)


def assert_same(actual: np.ndarray, expected: np.ndarray) -> None:
    """Same dtype, shape and bits: NaN payloads and the sign of zero count too."""
    assert actual.dtype == expected.dtype
    assert actual.shape == expected.shape
    if expected.dtype == object:
        assert actual.tolist() == expected.tolist()
    else:
        assert np.ascontiguousarray(actual).tobytes() == np.ascontiguousarray(expected).tobytes()


@pytest.mark.parametrize("as_content", [False, True])
@pytest.mark.parametrize("name", NUMERIC)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_numbers_round_trip(name: str, as_content: bool, data: st.DataObject) -> None:
    array = data.draw(numeric_arrays(name))
    message = array_to_tensor(array, as_content=as_content)
    received = tensorflow_pb2.TensorProto.FromString(message.SerializeToString())
    assert received.dtype == dtype_by_name(name).enum
    assert bool(received.tensor_content) == (as_content and array.size > 0)
    assert_same(tensor_to_array(received), array)


@pytest.mark.parametrize("name", NUMERIC)
@settings(max_examples=10, deadline=None)
@given(data=st.data())
def test_tensorflow_reads_both_forms(name: str, data: st.DataObject) -> None:
    import tensorflow as tf
    from tensorflow.core.framework import tensor_pb2

    array = data.draw(numeric_arrays(name))
    for as_content in (False, True):
        blob = array_to_tensor(array, as_content=as_content).SerializeToString()
        assert_same(tf.make_ndarray(tensor_pb2.TensorProto.FromString(blob)), array)


@pytest.mark.parametrize("name", NUMERIC)
@settings(max_examples=10, deadline=None)
@given(data=st.data())
def test_reads_what_tensorflow_writes(name: str, data: st.DataObject) -> None:
    import tensorflow as tf

    array = data.draw(numeric_arrays(name))
    blob = tf.make_tensor_proto(array).SerializeToString()
    assert_same(tensor_to_array(tensorflow_pb2.TensorProto.FromString(blob)), array)


@pytest.mark.parametrize("name", ["float32", "int64", "uint8"])
def test_content_is_byte_for_byte_tensorflows(name: str) -> None:
    import tensorflow as tf

    array = np.arange(6).reshape(2, 3).astype(dtype_by_name(name).numpy)
    ours, theirs = array_to_tensor(array, as_content=True), tf.make_tensor_proto(array)
    assert ours.SerializeToString(deterministic=True) == theirs.SerializeToString(deterministic=True)


@settings(max_examples=40, deadline=None)
@given(array=string_arrays())
def test_strings_round_trip(array: np.ndarray) -> None:
    blob = array_to_tensor(array).SerializeToString()
    assert_same(tensor_to_array(tensorflow_pb2.TensorProto.FromString(blob)), array)


@settings(max_examples=20, deadline=None)
@given(array=string_arrays())
def test_strings_in_content_follow_tensorflows_layout(array: np.ndarray) -> None:
    lengths = b"".join(_varint(len(value)) for value in array.ravel().tolist())
    message = array_to_tensor(array)
    message.ClearField("string_val")
    message.tensor_content = lengths + b"".join(array.ravel().tolist())
    if message.tensor_content:
        assert_same(tensor_to_array(message), array)


def _varint(value: int) -> bytes:
    out = b""
    while value > 127:
        out, value = out + bytes([value & 127 | 128]), value >> 7
    return out + bytes([value])


@pytest.mark.parametrize("kind", [">f2", ">f4", ">f8", ">i2", ">i4", ">i8", ">u4", ">c8"])
@pytest.mark.parametrize("as_content", [False, True])
def test_big_endian_arrays_keep_their_values(kind: str, as_content: bool) -> None:
    array = np.array([[1, 2, 3], [4, 5, 6]], dtype=kind)
    np.testing.assert_array_equal(tensor_to_array(array_to_tensor(array, as_content=as_content)), array)


@pytest.mark.parametrize("as_content", [False, True])
@pytest.mark.parametrize("name", ["float32", "float16", "int32"])
def test_strided_arrays_keep_their_values(name: str, as_content: bool) -> None:
    array = np.arange(24, dtype=name).reshape(4, 6)[::2, ::-3].T
    np.testing.assert_array_equal(tensor_to_array(array_to_tensor(array, as_content=as_content)), array)


def _enum(number: int) -> Any:
    # The generated stubs want names or their own type; numbers are what travels.
    return number


def _tensor(dtype: str, shape: list[int], **fields: Any) -> tensorflow_pb2.TensorProto:
    return tensorflow_pb2.TensorProto(
        dtype=_enum(dtype_by_name(dtype).enum), tensor_shape=shape_to_proto(shape), **fields
    )


@pytest.mark.parametrize("name", NUMERIC)
def test_missing_values_repeat_the_last(name: str) -> None:
    import tensorflow as tf
    from tensorflow.core.framework import tensor_pb2

    kind = dtype_by_name(name).numpy
    message = array_to_tensor(np.array([1, 2 if name != "bool" else 0], dtype=kind))
    message.tensor_shape.CopyFrom(shape_to_proto([2, 3]))
    expected = tf.make_ndarray(tensor_pb2.TensorProto.FromString(message.SerializeToString()))
    assert_same(tensor_to_array(message), expected)
    assert expected.ravel().tolist()[1:] == [expected.ravel()[1]] * 5


@pytest.mark.parametrize("name", dtype_names())
def test_no_values_mean_zeros(name: str) -> None:
    array = tensor_to_array(_tensor(name, [2, 2]))
    assert array.shape == (2, 2)
    assert array.dtype == dtype_by_name(name).numpy
    assert array.ravel().tolist() == ([b""] if name == "string" else [0]) * 4


@pytest.mark.parametrize("name", dtype_names())
def test_values_beyond_the_shape_are_dropped(name: str) -> None:
    values = [b"a", b"b", b"c"] if name == "string" else [1, 0, 1]
    array = np.array(values, dtype=dtype_by_name(name).numpy)
    message = array_to_tensor(array)
    message.tensor_shape.CopyFrom(shape_to_proto([2]))
    assert_same(tensor_to_array(message), array[:2])


def test_missing_shape_is_a_scalar() -> None:
    message = _tensor("float32", [], float_val=[2.5])
    message.ClearField("tensor_shape")
    assert_same(tensor_to_array(message), np.array(2.5, dtype=np.float32))


def test_narrow_integers_wrap() -> None:
    assert tensor_to_array(_tensor("uint8", [2], int_val=[300, -1])).tolist() == [44, 255]


def test_content_wins_over_values() -> None:
    message = _tensor("int32", [1], tensor_content=b"\x07\0\0\0", int_val=[1])
    assert tensor_to_array(message).tolist() == [7]


def test_reference_dtypes_count_as_their_base() -> None:
    message = _tensor("float32", [1], float_val=[1.0])
    message.dtype = _enum(101)
    assert tensor_to_array(message).dtype == np.float32


@pytest.mark.parametrize(
    ("message", "fragment"),
    [
        (tensorflow_pb2.TensorProto(), "dtype 0 is not valid"),
        (tensorflow_pb2.TensorProto(dtype=_enum(99)), "dtype 99 is not valid"),
        (_tensor("float32", [2], tensor_content=b"1234567"), "has 7 bytes"),
        (_tensor("float32", [-1], float_val=[1.0]), "negative size"),
        (_tensor("float32", [1 << 20, 1 << 20]), "has more than"),
        (_tensor("float32", [0, 1 << 62]), "has more than"),
        (_tensor("float32", [1] * 65, float_val=[1.0]), "65 dimensions; expected at most 64"),
        (_tensor("float32", [1 << 31] * 40_000), "40000 dimensions; expected at most 64"),
        (tensorflow_pb2.TensorProto(dtype=_enum(1), tensor_shape=shape_to_proto(None)), "unknown rank"),
        (_tensor("complex64", [1], scomplex_val=[1.0, 2.0, 3.0]), "expected pairs"),
        (_tensor("string", [2], tensor_content=b"\x01"), "ends inside its lengths"),
        (_tensor("string", [1], tensor_content=b"\xff" * 12), "ends inside its lengths"),
        (_tensor("string", [1], tensor_content=b"\x05ab"), "its 1 strings take 6"),
    ],
)
def test_malformed_messages_are_refused(message: tensorflow_pb2.TensorProto, fragment: str) -> None:
    with pytest.raises(InvalidInputError, match="tensor parsing error: x") as caught:
        tensor_to_array(message, name="x")
    assert fragment in caught.value.message


def test_dtypes_without_tensors_are_unsupported() -> None:
    with pytest.raises(UnsupportedError, match="DT_RESOURCE"):
        tensor_to_array(tensorflow_pb2.TensorProto(dtype=_enum(20)))


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("é", np.array("é".encode(), dtype=object)),
        (b"a\0", np.array(b"a\0", dtype=object)),
        ([b"a\0", b"b"], np.array([b"a\0", b"b"], dtype=object)),
        ([["a"], ["b\0"]], np.array([[b"a"], [b"b\0"]], dtype=object)),
        (np.array(["a", "bc"]), np.array([b"a", b"bc"], dtype=object)),
        (np.array(["a"], dtype="T" if np.__version__ >= "2" else "U"), np.array([b"a"], dtype=object)),
        ([1, 2], np.array([1, 2])),
        (1.5, np.array(1.5)),
        (np.float32(1.5), np.array(1.5, dtype=np.float32)),
        ([], np.array([])),
    ],
)
def test_values_become_arrays(value: Any, expected: np.ndarray) -> None:
    assert_same(as_wire_array(value), expected)


@pytest.mark.parametrize("value", [[[1], [1, 2]], [None], ["a", 1], {"a": 1}, [["a"], ["b", "c"]], object()])
def test_values_that_are_no_arrays_are_refused(value: Any) -> None:
    with pytest.raises(InvalidInputError, match=r"[Ee]xpected"):
        as_wire_array(value)


_MASKED = np.ma.array([1.0, 2.0], mask=[False, True])


@pytest.mark.parametrize("value", [_MASKED, [_MASKED], [[np.zeros(2), _MASKED]]])
def test_masked_values_are_refused(value: Any) -> None:
    with pytest.raises(InvalidInputError, match=r"masked values.*\.filled\(value\)"):
        as_wire_array(value)


def test_a_mask_that_hides_nothing_is_no_matter() -> None:
    assert as_wire_array(np.ma.array([1.0, 2.0])).tolist() == [1.0, 2.0]


def test_text_that_utf8_cannot_write_is_refused() -> None:
    with pytest.raises(InvalidInputError, match=r"'\\ud800' at position 1. Send bytes instead"):
        as_wire_array(["a", "\ud800"])


@pytest.mark.parametrize("value", [np.array(["2020-01-01"], dtype="M8[D]"), np.zeros(1, np.longdouble)])
def test_dtypes_that_no_tensor_has_are_refused(value: np.ndarray) -> None:
    with pytest.raises(UnsupportedError, match="no counterpart"):
        as_wire_array(value)
    with pytest.raises(UnsupportedError, match="no counterpart"):
        array_to_tensor(value)


def test_string_tensors_hold_nothing_else() -> None:
    with pytest.raises(InvalidInputError, match="received dict at position 1"):
        array_to_tensor(np.array([b"a", {}], dtype=object))


@pytest.mark.parametrize("shape", [None, (), (-1, 28, 28, 1), (0,)])
def test_shapes_round_trip(shape: tuple[int, ...] | None) -> None:
    assert shape_from_proto(shape_to_proto(shape)) == shape
