"""Regular expressions: TensorFlow takes the first way in which one matches, onnxruntime the longest."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Sequence
from re import _constants as constants  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any

#: As little as there is before a character that ends the expression: what is not that character.
_UP_TO = re.compile(r"(?P<begin>.*)(?<!\\)\.(?P<times>[*+])\?(?P<end>\\[^\w\s]|[^\\\[\](){}.*+?^$|])", re.DOTALL)

_FLAGS = re.compile(r"\(\?[a-zA-Z]*[sU]")


def longest(pattern: str) -> str:
    """An expression whose longest match is what this one takes: ``<[^>]*>`` for ``<.*?>``."""
    found = _UP_TO.fullmatch(pattern)
    # With (?s), a point takes the end of a line, too; with (?U), everything is the other way round.
    if found is None or _FLAGS.search(pattern):
        return pattern
    first = "." if found["times"] == "+" else ""
    return rf"{found['begin']}{first}[^\n{found['end']}]*{found['end']}"


def prefers_shorter(pattern: str) -> bool:
    """Whether an expression may take less than it could: by ``*?``, or as the first of two words begins the second."""
    if re.search(r"\(\?[a-zA-Z]*U", pattern):
        return True
    try:
        with warnings.catch_warnings():
            # Of [[:alpha:]], which is RE2's.
            warnings.simplefilter("ignore", FutureWarning)
            parsed = parser.parse(longest(pattern))
    except re.error:
        # Of what RE2 has and Python has not.
        return False
    return any(_prefers(op, value) for op, value in _nodes(parsed))


def _prefers(op: Any, value: Any) -> bool:
    if op is constants.MIN_REPEAT:
        return True
    if op is not constants.BRANCH:
        return False
    branches = [list(each) for each in value[1]]
    return any(
        len(later) > len(earlier) and later[: len(earlier)] == earlier
        for place, earlier in enumerate(branches)
        for later in branches[place + 1 :]
    )


def _nodes(parsed: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
    """All parts of a parsed expression."""
    for op, value in parsed:
        yield op, value
        for each in value if isinstance(value, tuple) else [value]:
            if isinstance(each, parser.SubPattern):
                yield from _nodes(each)
            elif op is constants.BRANCH and isinstance(each, list):
                for branch in each:
                    yield from _nodes(branch)
