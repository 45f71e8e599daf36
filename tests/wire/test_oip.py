"""The protocol's dtype names: each wire dtype but the complex ones has exactly one."""

from __future__ import annotations

from modelyard.wire import OIP_DATATYPES, dtype_names


def test_every_dtype_has_a_name_of_its_own() -> None:
    assert OIP_DATATYPES.keys() == set(dtype_names()) - {"complex64", "complex128"}
    assert len(set(OIP_DATATYPES.values())) == len(OIP_DATATYPES)
