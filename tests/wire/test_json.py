"""JSON has no NaN and no infinity."""

from __future__ import annotations

import json
from typing import NoReturn

import pytest

from modelyard.wire import json_text


def refuse(word: str) -> NoReturn:
    raise AssertionError(f"{word} is no JSON")


def test_what_is_not_finite_is_null() -> None:
    document = {"a": float("nan"), "b": [1.5, [float("inf")], {"c": -float("inf")}], "d": ("é", None, 3)}
    expected = {"a": None, "b": [1.5, [None], {"c": None}], "d": ["é", None, 3]}
    assert json.loads(json_text(document), parse_constant=refuse) == expected
    assert json_text({"é": 1.0}, ensure_ascii=False) == '{"é": 1.0}'


def test_what_is_no_value_of_json() -> None:
    with pytest.raises(TypeError, match="complex"):
        json_text({"a": 1j})
    with pytest.raises(TypeError, match="complex"):
        json_text({"a": float("nan"), "b": 1j})
