"""Names, numbers and numpy types agree with TensorFlow's."""

from __future__ import annotations

import numpy as np
import pytest

from modelyard.errors import InvalidInputError, UnsupportedError
from modelyard.wire import dtype_by_enum, dtype_by_name, dtype_by_numpy, dtype_names, tensorflow_pb2


@pytest.mark.parametrize("name", dtype_names())
def test_agrees_with_tensorflow(name: str) -> None:
    import tensorflow as tf

    dtype, theirs = dtype_by_name(name), tf.as_dtype(name)
    assert dtype.enum == theirs.as_datatype_enum
    assert dtype.numpy == np.dtype(theirs.as_numpy_dtype)
    assert dtype_by_enum(dtype.enum) is dtype
    assert dtype_by_enum(dtype.enum + 100) is dtype
    assert dtype.numpy is not None
    assert dtype_by_numpy(dtype.numpy) is dtype
    assert dtype.field in tensorflow_pb2.TensorProto.DESCRIPTOR.fields_by_name


@pytest.mark.parametrize("kind", ["S3", "U2", "O"])
def test_text_and_bytes_are_strings(kind: str) -> None:
    assert dtype_by_numpy(np.dtype(kind)).name == "string"


def test_unknown_ones_are_errors() -> None:
    with pytest.raises(UnsupportedError, match="'float31'"):
        dtype_by_name("float31")
    with pytest.raises(InvalidInputError, match="dtype 0"):
        dtype_by_enum(0)
    with pytest.raises(InvalidInputError, match="dtype 77"):
        dtype_by_enum(77)
    with pytest.raises(UnsupportedError, match="DT_VARIANT"):
        dtype_by_enum(21)
    with pytest.raises(UnsupportedError, match="timedelta"):
        dtype_by_numpy(np.dtype("m8[s]"))
