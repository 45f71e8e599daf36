"""A few bytes cannot make the receiver allocate gigabytes."""

from __future__ import annotations

from typing import Any

import pytest

from modelyard.errors import InvalidInputError, RequestTooLargeError
from modelyard.wire import tensor_to_array, tensorflow_pb2


def tensor_of(dtype: int, *shape: int, **values: Any) -> tensorflow_pb2.TensorProto:
    tensor = tensorflow_pb2.TensorProto(**values)
    tensor.dtype = dtype  # type: ignore[assignment]
    for size in shape:
        tensor.tensor_shape.dim.add().size = size
    return tensor


@pytest.mark.parametrize("dtype", [1, 4, 7, 9, 10, 18, 19])
@pytest.mark.parametrize("shape", [(1 << 30,), (1 << 15, 1 << 15)])
def test_a_huge_tensor_of_few_values_is_refused(dtype: int, shape: tuple[int, ...]) -> None:
    with pytest.raises(RequestTooLargeError, match="must be sent in full"):
        tensor_to_array(tensor_of(dtype, *shape))


def test_an_ordinary_tensor_of_few_values_is_filled() -> None:
    array = tensor_to_array(tensor_of(1, 1 << 20, float_val=[1.5]))
    assert array.shape == (1 << 20,)
    assert set(array.tolist()) == {1.5}


def test_values_are_repeated_for_64_mib_and_no_byte_more() -> None:
    assert tensor_to_array(tensor_of(1, 1 << 24, float_val=[1.5])).nbytes == 1 << 26
    with pytest.raises(RequestTooLargeError, match=rf"takes {(1 << 26) + 4} bytes, but only 1 values were sent"):
        tensor_to_array(tensor_of(1, (1 << 24) + 1, float_val=[1.5]))


def test_a_shape_of_more_than_2_to_the_31_elements_is_refused_whatever_was_sent() -> None:
    with pytest.raises(RequestTooLargeError, match="must be sent in full"):
        tensor_to_array(tensor_of(10, 1 << 31, bool_val=[True]))
    with pytest.raises(InvalidInputError, match="has more than 2147483648 elements"):
        tensor_to_array(tensor_of(10, (1 << 31) + 1, bool_val=[True]))


def test_content_of_another_length_is_told_from_what_the_shape_takes() -> None:
    with pytest.raises(InvalidInputError, match=r"tensor_content has 5 bytes; shape \[3\] of float32 takes 12"):
        tensor_to_array(tensor_of(1, 3, tensor_content=b"12345"))
