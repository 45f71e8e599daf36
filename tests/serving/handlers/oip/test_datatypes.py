"""The protocol's dtype names: each wire dtype but the complex ones has exactly one."""

from __future__ import annotations

import pytest

from modelyard.errors import InvalidInputError, UnsupportedError
from modelyard.serving.handlers.oip._datatypes import datatype_of, dtype_of
from modelyard.wire import dtype_names

COMPLEX = ("complex64", "complex128")


@pytest.mark.parametrize("name", [name for name in dtype_names() if name not in COMPLEX])
def test_names_go_there_and_back(name: str) -> None:
    assert dtype_of(datatype_of(name, tensor="x"), tensor="x").name == name


@pytest.mark.parametrize("name", COMPLEX)
def test_complex_numbers_have_none(name: str) -> None:
    with pytest.raises(UnsupportedError, match=f"Tensor 'x' is {name}"):
        datatype_of(name, tensor="x")


@pytest.mark.parametrize("datatype", ["fp32", "DT_FLOAT", "STRING", ""])
def test_other_names_are_refused(datatype: str) -> None:
    with pytest.raises(InvalidInputError, match="unknown datatype"):
        dtype_of(datatype, tensor="x")
