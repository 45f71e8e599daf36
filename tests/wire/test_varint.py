"""Numbers as text."""

from __future__ import annotations

import pytest

from modelyard.wire import decimal


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("0", 0),
        ("007", 7),
        (str((1 << 63) - 1), (1 << 63) - 1),
        ("", None),
        ("-1", None),
        ("1_0", None),
        ("\u0663", None),
        ("9" * 5000, None),
    ],
)
def test_digits_alone_are_a_number(text: str, number: int | None) -> None:
    assert decimal(text) == number
