"""A few bytes cannot make the receiver allocate gigabytes."""

from __future__ import annotations

import pytest

from modelyard.errors import RequestTooLargeError
from modelyard.wire import tensor_to_array, tensorflow_pb2


@pytest.mark.parametrize("dtype", [1, 4, 7, 9, 10, 18, 19])
@pytest.mark.parametrize("shape", [(1 << 30,), (1 << 15, 1 << 15)])
def test_a_huge_tensor_of_few_values_is_refused(dtype: int, shape: tuple[int, ...]) -> None:
    tensor = tensorflow_pb2.TensorProto()
    tensor.dtype = dtype  # type: ignore[assignment]
    for size in shape:
        tensor.tensor_shape.dim.add().size = size
    with pytest.raises(RequestTooLargeError, match="must be sent in full"):
        tensor_to_array(tensor)


def test_an_ordinary_tensor_of_few_values_is_filled() -> None:
    tensor = tensorflow_pb2.TensorProto(float_val=[1.5])
    tensor.dtype = 1  # type: ignore[assignment]
    tensor.tensor_shape.dim.add().size = 1 << 20
    array = tensor_to_array(tensor)
    assert array.shape == (1 << 20,)
    assert set(array.tolist()) == {1.5}
