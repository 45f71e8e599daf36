"""The error tree is what its drawing says."""

from __future__ import annotations

import copy
import inspect
import pickle
import re
from collections.abc import Callable
from typing import Any

import pytest

from modelyard import errors


def _classes() -> dict[str, type[errors.ModelyardError]]:
    return {
        name: value
        for name, value in vars(errors).items()
        if inspect.isclass(value) and issubclass(value, errors.ModelyardError)
    }


def _drawn() -> dict[str, tuple[str, bool]]:
    """Parent, and whether the class only groups, of every class in the drawing."""
    stack: list[tuple[int, str]] = []
    found: dict[str, tuple[str, bool]] = {}
    for line in (errors.__doc__ or "").split("::", 1)[1].splitlines():
        match = re.match(r"^    ((?:[ |]|[x+](?= ))*)([A-Z]\w+Error)\b", line)
        if match is None:
            continue
        depth, name = len(match[1]), match[2]
        while stack and stack[-1][0] >= depth:
            stack.pop()
        found[name] = (stack[-1][1] if stack else "Exception", match[1].rstrip().endswith("x"))
        stack.append((depth, name))
    return found


def test_messages_have_no_escapes_of_a_terminal() -> None:
    error = errors.ConversionError("\x1b[1mDense.call().\x1b[0m\x1b[1;31m failed")
    assert error.message == str(error) == "Dense.call(). failed"


def test_drawing_shows_every_class_below_its_base() -> None:
    drawn = _drawn()
    assert {name: parent for name, (parent, _) in drawn.items()} == {
        name: kind.__bases__[0].__name__ for name, kind in _classes().items()
    }


def test_groups_are_marked() -> None:
    parents = {kind.__bases__[0].__name__ for kind in _classes().values()} - {"Exception", "InvalidRequestError"}
    for name, (_, groups) in _drawn().items():
        if name in parents - {"ModelyardError"}:
            assert groups or name == "ConfigurationError", name


def test_all_is_sorted_and_complete() -> None:
    assert errors.__all__ == sorted(_classes())


def test_every_class_has_a_docstring_of_its_own() -> None:
    assert [name for name, kind in _classes().items() if not kind.__dict__.get("__doc__")] == []


@pytest.mark.parametrize("kind", [kind for name, kind in _classes().items() if name != "MissingDependencyError"])
def test_message_is_the_text(kind: type[errors.ModelyardError]) -> None:
    error = kind("received 1; expected 2")
    assert (error.message, str(error)) == ("received 1; expected 2", "received 1; expected 2")


@pytest.mark.parametrize("again", [copy.copy, lambda error: pickle.loads(pickle.dumps(error))], ids=["copy", "pickle"])
@pytest.mark.parametrize("kind", _classes().values())
def test_errors_cross_processes(kind: type[errors.ModelyardError], again: Callable[[Any], Any]) -> None:
    error: errors.ModelyardError
    if issubclass(kind, errors.MissingDependencyError):
        error = kind(package="locust", extra="loadtests", purpose="The load test")
    else:
        error = kind("received 1; expected 2")
    error.request_id, error.retry_after_s = "r", 1.5
    other = again(error)
    assert type(other) is kind
    assert (other.args, vars(other)) == (error.args, vars(error))


def test_missing_dependency_names_the_line_that_cures_it() -> None:
    error = errors.MissingDependencyError(package="locust", extra="loadtests", purpose="The load test")
    assert error.extra == "loadtests"
    assert "pip install 'modelyard[loadtests]'" in error.message
    assert "The load test needs the package 'locust'" in error.message
